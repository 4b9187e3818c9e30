package kafkaclient_test

import (
	"sync"
	"testing"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/claimq/claimq/internal/kafkaclient"
)

// The race detector tells; without the lock it does.
func TestClientsOfSharedOptionsDoNotRace(t *testing.T) {
	t.Parallel()
	options := []kgo.Opt{
		kgo.SeedBrokers("127.0.0.1:1"),
		kgo.ProducerBatchCompression(kgo.Lz4Compression(), kgo.Lz4Compression(), kgo.NoCompression()),
	}
	var working sync.WaitGroup
	for range 20 {
		working.Go(func() {
			client, err := kafkaclient.New(options...)
			if err != nil {
				t.Error(err)
				return
			}
			client.Close()
		})
	}
	working.Wait()
}

func TestAnOptionThatCannotWorkIsTold(t *testing.T) {
	t.Parallel()
	if client, err := kafkaclient.New(kgo.RequiredAcks(kgo.NoAck())); err == nil {
		client.Close()
		t.Error("idempotent writes without acknowledgements are taken")
	}
}
