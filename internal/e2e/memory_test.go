package e2e

import (
	"bufio"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/claimq/claimq/internal/kafkatest"
)

// backlogVariable is the size of the backlog in megabytes: 2048 is the form of the
// promise, and takes some minutes.
const backlogVariable = "CLAIMQ_TEST_BACKLOG_MB"

// memoryLimit is what a worker may have resident at most, in megabytes.
const memoryLimit = 256

// A backlog over fifty partitions and a handler that is stuck: what was read and
// cannot be handled must not pile up, and the other partitions are drained.
func TestABacklogAndAStuckHandlerStayWithinMemory(t *testing.T) {
	t.Parallel()
	backlog := 400
	if text := os.Getenv(backlogVariable); text != "" {
		var err error
		if backlog, err = strconv.Atoi(text); err != nil {
			t.Fatalf("%s: %v", backlogVariable, err)
		}
	}
	for name, compressible := range map[string]bool{"as random bytes": false, "compressed to a fraction": true} {
		t.Run(name, func(t *testing.T) { drainBacklog(t, backlog, compressible) })
	}
}

func drainBacklog(t *testing.T, megabytes int, compressible bool) {
	t.Helper()
	const partitions, size = 50, 10_000
	s := newShop(t, partitions)
	perPartition := megabytes * 1_000_000 / size / partitions
	s.produceBacklog(partitions, perPartition, size, compressible)

	// The statement of the stuck message sleeps until its handler's time is over,
	// which it is long after the test.
	const stuck = `insert into SCHEMA.effects (id, partition)
        select m.id, m.partition from unnest(@ids, @partitions, @raws) as m (id, partition, raw)
         where case when m.id = 'stuck' then pg_sleep(3600) is not null else length(m.raw) > 0 end`
	config := s.ordersConfig("handler_timeout: 20m", "rebalance_timeout: 21m", "stop_budget: 100ms")
	before, rest, _ := strings.Cut(config, "        insert into")
	_, after, _ := strings.Cut(rest, "\n    handler_timeout")
	config = before + "        " + strings.ReplaceAll(stuck, "SCHEMA", s.db.Schema) + "\n    handler_timeout" + after
	began := time.Now()
	run := claimq(t, config, "run")
	drained := func() int {
		return s.ask(fmt.Sprintf(`select count(*) from (select partition from SCHEMA.effects group by partition having count(*) = %d) p`, perPartition))
	}
	// Those in the stuck one's batch wait for it: at most what one batch holds.
	const held = 10
	eventuallyWithin(t, time.Duration(megabytes)*time.Second+patience, "the other partitions are drained", func() bool { return drained() >= partitions-held })
	took := time.Since(began)
	resident := peakMemory(t, run)
	t.Logf("%d MB over %d partitions: %d of them drained in %s; at most %d MB resident", megabytes, partitions, drained(), took.Round(time.Second), resident)
	if resident > memoryLimit {
		t.Errorf("%d MB were resident, want at most %d", resident, memoryLimit)
	}
	if n := s.ask(`select count(*) from SCHEMA.effects where id = 'stuck'`); n != 0 {
		t.Error("the stuck message was not stuck")
	}
	run.kill()
}

// produceBacklog fills each partition with messages of a size. The first of the
// first partition is the stuck one, in place of one of the others.
func (s *shop) produceBacklog(partitions, each, size int, compressible bool) {
	s.t.Helper()
	codec, value := kgo.NoCompression(), make([]byte, size)
	if compressible {
		codec, value = kgo.ZstdCompression(), []byte(strings.Repeat(`{"field":"a value that repeats"},`, size/32))
	} else {
		chance := rand.New(rand.NewPCG(1, 2))
		for i := range value {
			value[i] = byte(chance.UintN(256))
		}
	}
	producer := kafkatest.Client(s.t, s.brokers, kgo.RecordPartitioner(kgo.ManualPartitioner()), kgo.ProducerBatchCompression(codec), kgo.RecordRetries(50))
	defer producer.Close()
	failed := make(chan error, 1)
	for i := range each {
		for partition := range partitions {
			id := fmt.Sprintf("p%d-%d", partition, i)
			if partition == 0 && i == 0 {
				id = "stuck"
			}
			producer.Produce(s.t.Context(), &kgo.Record{
				Topic: s.topic, Partition: int32(partition), Key: []byte("k" + strconv.Itoa(i%97)), Value: value,
				Headers: []kgo.RecordHeader{{Key: "idempotency-key", Value: []byte(id)}},
			}, func(_ *kgo.Record, err error) {
				if err != nil {
					select {
					case failed <- err:
					default:
					}
				}
			})
		}
	}
	if err := producer.Flush(s.t.Context()); err != nil {
		s.t.Fatal(err)
	}
	select {
	case err := <-failed:
		s.t.Fatalf("produce the backlog: %v", err)
	default:
	}
}

// peakMemory is the most that a process has ever had resident, in megabytes.
func peakMemory(t *testing.T, p *process) int {
	t.Helper()
	file, err := os.Open(fmt.Sprintf("/proc/%d/status", p.PID()))
	if err != nil {
		t.Fatalf("this test reads a process's peak memory as Linux tells it: %v", err)
	}
	defer file.Close()
	for lines := bufio.NewScanner(file); lines.Scan(); {
		var kilobytes int
		if _, err := fmt.Sscanf(lines.Text(), "VmHWM: %d kB", &kilobytes); err == nil {
			return kilobytes / 1024
		}
	}
	t.Fatal("the kernel tells no VmHWM")
	return 0
}
