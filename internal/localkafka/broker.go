package localkafka

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"text/template"
	"time"

	"github.com/claimq/claimq/deploy/kafka"
	"github.com/claimq/claimq/internal/localproc"
)

// errPortTaken tells that a broker ended because somebody else has its port.
var errPortTaken = errors.New("its port was taken")

var properties = template.Must(template.New("server.properties").Parse(kafka.ServerProperties))

// Broker is one broker of a [Cluster], also while it is stopped. Its methods
// are safe for concurrent use.
type Broker struct {
	// Node is the broker's number, from 1.
	Node int
	// Dir holds its configuration, data and log.
	Dir string

	cluster                          *Cluster
	port, controllerPort, securePort int
	guard                            *localproc.Guard

	mu      sync.Mutex
	process *localproc.Process
}

func newBroker(cluster *Cluster, node int) (*Broker, error) {
	broker := &Broker{Node: node, Dir: filepath.Join(cluster.Dir, "broker"+strconv.Itoa(node)), cluster: cluster}
	if err := os.MkdirAll(broker.Dir, 0o755); err != nil {
		return nil, err
	}
	for _, port := range []*int{&broker.port, &broker.controllerPort, &broker.securePort} {
		free, err := localproc.FreePort()
		if err != nil {
			return nil, err
		}
		*port = free
	}
	if !cluster.config.secure() {
		broker.securePort = 0
	}
	guarded := ""
	if cluster.temporary {
		guarded = cluster.Dir
	}
	var err error
	broker.guard, err = localproc.NewGuard(guarded, guardSignal)
	return broker, err
}

func address(port int) string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(port)) }

// Addr is the broker's plain listener, host:port; it stays across restarts.
func (b *Broker) Addr() string { return address(b.port) }

// LogTail returns the last lines of the broker's log.
func (b *Broker) LogTail(lines int) string { return localproc.Tail(b.logFile(), lines) }

func (b *Broker) logFile() string        { return filepath.Join(b.Dir, "kafka.log") }
func (b *Broker) propertiesFile() string { return filepath.Join(b.Dir, "server.properties") }

// Running tells whether the broker's process runs; a frozen one does.
func (b *Broker) Running() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.process != nil && b.process.Running()
}

// PID is the broker's process number.
func (b *Broker) PID() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.process.PID()
}

// Stop shuts the broker down in order: it hands its partitions over first. When
// ctx ends before that the broker is killed, and the error says so.
func (b *Broker) Stop(ctx context.Context) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.process == nil {
		return nil
	}
	if err := b.process.Stop(ctx, syscall.SIGTERM); err != nil {
		return fmt.Errorf("stop kafka broker %d: %w", b.Node, err)
	}
	return nil
}

// Kill ends the broker with SIGKILL, as a crash would.
func (b *Broker) Kill() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.process != nil {
		b.process.Kill()
	}
}

// Restart stops the broker in order, when it runs, starts it on the same ports
// and data, and returns when it answers and sees as many brokers as run.
func (b *Broker) Restart(ctx context.Context) error {
	if err := b.Stop(ctx); err != nil {
		return err
	}
	if err := b.launch(); err != nil {
		return err
	}
	return b.cluster.WaitReady(ctx)
}

// Freeze stops the broker with SIGSTOP: connections stay open and nothing
// answers.
func (b *Broker) Freeze() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.process.Freeze()
}

// Thaw wakes a frozen broker.
func (b *Broker) Thaw() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.process.Thaw()
}

func (b *Broker) writeProperties(keystore string) error {
	config := b.cluster.config
	voters := make([]string, 0, config.Brokers)
	for _, other := range b.cluster.brokers {
		voters = append(voters, fmt.Sprintf("%d@%s", other.Node, address(other.controllerPort)))
	}
	replicas := min(config.Brokers, 3)
	var text strings.Builder
	err := properties.Execute(&text, map[string]any{
		"Node": b.Node, "Voters": strings.Join(voters, ","), "DataDir": filepath.Join(b.Dir, "data"),
		"Port": b.port, "ControllerPort": b.controllerPort, "SecurePort": b.securePort,
		"SecureProtocol": config.secureProtocol(), "Replicas": replicas, "MinInSync": max(1, replicas-1),
		"Extra": config.extra(keystore),
	})
	if err != nil {
		return fmt.Errorf("write server.properties: %w", err)
	}
	return os.WriteFile(b.propertiesFile(), []byte(text.String()), 0o600)
}

// format gives the data directory the cluster's identity, which a broker
// without ZooKeeper does not make up itself.
func (b *Broker) format(ctx context.Context) error {
	arguments := append(b.javaArguments(),
		"kafka.tools.StorageTool", "format", "--cluster-id", b.cluster.id, "--config", b.propertiesFile(), "--ignore-formatted")
	cmd := exec.CommandContext(ctx, b.cluster.java, append(arguments, b.cluster.config.scramArguments()...)...)
	if output, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("format the data of kafka broker %d: %w; it says:\n%s", b.Node, err, output)
	}
	return nil
}

func (b *Broker) javaArguments() []string {
	config := b.cluster.config
	arguments := []string{
		"-Xmx" + strconv.Itoa(config.HeapMB) + "m", "-XX:+UseSerialGC", "-Djava.awt.headless=true",
		"-Dorg.apache.logging.log4j.level=" + config.LogLevel,
	}
	arguments = append(arguments, config.JVM...)
	return append(arguments, "-cp", filepath.Join(b.cluster.Jars, "*"))
}

func (b *Broker) launch() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	process, err := localproc.Start(localproc.Spec{
		Path:    b.cluster.java,
		Args:    append(b.javaArguments(), "kafka.Kafka", b.propertiesFile()),
		Dir:     b.Dir,
		LogFile: b.logFile(),
		Guard:   b.guard,
	})
	if err != nil {
		return fmt.Errorf("kafka broker %d: %w", b.Node, err)
	}
	b.process = process
	return nil
}

// waitReady waits until the broker answers and sees so many brokers.
func (b *Broker) waitReady(ctx context.Context, brokers int) error {
	b.mu.Lock()
	process := b.process
	b.mu.Unlock()
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for {
		err := seesBrokers(ctx, b.Addr(), brokers)
		if err == nil {
			return nil
		}
		select {
		case <-process.Done():
			return b.endedEarly(process)
		case <-ctx.Done():
			return fmt.Errorf("kafka broker %d is not ready (%w; last try: %w); its log says:\n%s", b.Node, ctx.Err(), err, b.LogTail(20))
		case <-tick.C:
		}
	}
}

func (b *Broker) endedEarly(process *localproc.Process) error {
	err := fmt.Errorf("kafka broker %d ended while starting (%v); its log says:\n%s", b.Node, process.Err(), b.LogTail(20)) //nolint:errorlint // nil when it ended well
	for _, port := range []int{b.port, b.controllerPort, b.securePort} {
		if port != 0 && !localproc.PortFree(port) {
			return fmt.Errorf("%w (port %d): %w", errPortTaken, port, err)
		}
	}
	return err
}
