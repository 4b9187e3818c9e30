package localkafka

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/claimq/claimq/internal/localcert"
)

// startTimeout bounds Start when ctx has no deadline, once the jars are there.
const startTimeout = 2 * time.Minute

// Cluster is one or more running brokers. Its methods are safe for concurrent
// use.
type Cluster struct {
	// Dir holds the files of all brokers.
	Dir string
	// CAFile is the certificate authority of the secure listeners; empty
	// without Config.TLS.
	CAFile string
	// Jars is where the broker's jars are.
	Jars string

	config    Config
	java      string
	id        string
	temporary bool
	brokers   []*Broker
}

// Start starts the brokers and returns when all of them have joined and answer.
// On an error nothing is left behind. When ctx ends after Start has returned
// the brokers run on.
func Start(ctx context.Context, config Config) (*Cluster, error) {
	config, err := config.withDefaults()
	if err != nil {
		return nil, fmt.Errorf("start kafka: %w", err)
	}
	java, err := FindJava(ctx)
	if err != nil {
		return nil, err
	}
	if config.Jars == "" {
		if config.Jars, err = Jars(ctx, config.Logf); err != nil {
			return nil, err
		}
	}
	for attempt := 1; ; attempt++ {
		cluster, err := startOnce(ctx, config, java)
		if err == nil {
			return cluster, nil
		}
		// A free port may have been taken before the broker bound it.
		if attempt == 3 || !errors.Is(err, errPortTaken) {
			return nil, fmt.Errorf("start kafka: %w", err)
		}
	}
}

func startOnce(ctx context.Context, config Config, java string) (_ *Cluster, err error) {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	cluster := &Cluster{Dir: config.Dir, Jars: config.Jars, config: config, java: java, temporary: config.Dir == ""}
	if cluster.temporary {
		if cluster.Dir, err = os.MkdirTemp("", "cq-kafka-"); err != nil {
			return nil, err
		}
	}
	if cluster.Dir, err = filepath.Abs(cluster.Dir); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, cluster.discard())
		}
	}()
	if err := cluster.prepare(ctx); err != nil {
		return nil, err
	}
	for _, broker := range cluster.brokers {
		if err := broker.launch(); err != nil {
			return nil, err
		}
	}
	for _, broker := range cluster.brokers {
		if err := broker.waitReady(ctx, config.Brokers); err != nil {
			return nil, err
		}
	}
	return cluster, nil
}

// prepare makes identity, certificate, configuration and formatted data
// directory of all brokers.
func (c *Cluster) prepare(ctx context.Context) error {
	identity := make([]byte, 16)
	_, _ = rand.Read(identity) // never fails (crypto/rand)
	// The first character must not be a dash: StorageTool takes it for an option.
	c.id = "A" + base64.RawURLEncoding.EncodeToString(identity)[1:]
	keystore := ""
	if c.config.TLS {
		certificate, err := localcert.Generate(filepath.Join(c.Dir, "tls"))
		if err != nil {
			return err
		}
		c.CAFile, keystore = certificate.CAFile, certificate.KeystoreFile
	}
	for node := 1; node <= c.config.Brokers; node++ {
		broker, err := newBroker(c, node)
		if err != nil {
			return err
		}
		c.brokers = append(c.brokers, broker)
	}
	formatted := make([]error, len(c.brokers))
	var wait sync.WaitGroup
	for i, broker := range c.brokers {
		if err := broker.writeProperties(keystore); err != nil {
			return err
		}
		wait.Go(func() { formatted[i] = broker.format(ctx) })
	}
	wait.Wait()
	return errors.Join(formatted...)
}

// Brokers are the addresses of the plain listeners, host:port.
func (c *Cluster) Brokers() []string {
	addresses := make([]string, len(c.brokers))
	for i, broker := range c.brokers {
		addresses[i] = broker.Addr()
	}
	return addresses
}

// SecureBrokers are the addresses of the listeners with TLS, SASL or both; none
// without them.
func (c *Cluster) SecureBrokers() []string {
	if !c.config.secure() {
		return nil
	}
	addresses := make([]string, len(c.brokers))
	for i, broker := range c.brokers {
		addresses[i] = address(broker.securePort)
	}
	return addresses
}

// Broker returns a broker by its node number, from 1. It panics when there is
// no such broker.
func (c *Cluster) Broker(node int) *Broker { return c.brokers[node-1] }

// Size is the number of brokers.
func (c *Cluster) Size() int { return len(c.brokers) }

// WaitReady waits until every broker that runs sees all brokers that run.
func (c *Cluster) WaitReady(ctx context.Context) error {
	running := 0
	for _, broker := range c.brokers {
		if broker.Running() {
			running++
		}
	}
	for _, broker := range c.brokers {
		if broker.Running() {
			if err := broker.waitReady(ctx, running); err != nil {
				return err
			}
		}
	}
	return nil
}

// Stop shuts all brokers down in order, at the same time, and removes a
// temporary directory. Brokers that have not ended when ctx does are killed, and
// the error says so. It may be called twice.
func (c *Cluster) Stop(ctx context.Context) error {
	errs := make([]error, len(c.brokers))
	var wait sync.WaitGroup
	for i, broker := range c.brokers {
		wait.Go(func() { errs[i] = broker.Stop(ctx) })
	}
	wait.Wait()
	return errors.Join(errors.Join(errs...), c.discard())
}

// Discard kills all brokers and removes a temporary directory: the fast way
// to end a cluster whose data nobody wants.
func (c *Cluster) Discard() error { return c.discard() }

func (c *Cluster) discard() error {
	var errs []error
	for _, broker := range c.brokers {
		broker.Kill()
	}
	if c.temporary {
		errs = append(errs, os.RemoveAll(c.Dir))
	}
	for _, broker := range c.brokers {
		errs = append(errs, broker.guard.Release())
	}
	return errors.Join(errs...)
}

// Detach lets the brokers run on after the parent's end, with their files, and
// returns their process numbers. The Cluster must not be used afterwards.
func (c *Cluster) Detach() ([]int, error) {
	var pids []int
	for _, broker := range c.brokers {
		if err := errors.Join(broker.guard.KeepDir(), broker.guard.Release()); err != nil {
			return nil, err
		}
		pids = append(pids, broker.process.PID())
	}
	return pids, nil
}

// LogTail returns the last lines of each broker's log.
func (c *Cluster) LogTail(lines int) string {
	var all strings.Builder
	for _, broker := range c.brokers {
		fmt.Fprintf(&all, "broker %d:\n%s\n", broker.Node, broker.LogTail(lines))
	}
	return all.String()
}

// guardSignal ends brokers whose parent is gone at once: nobody wants their data.
const guardSignal = syscall.SIGKILL

// seesBrokers asks the broker at addr for its metadata.
func seesBrokers(ctx context.Context, addr string, want int) error {
	ctx, cancel := context.WithTimeout(ctx, 3*time.Second)
	defer cancel()
	client, err := kgo.NewClient(kgo.SeedBrokers(addr), kgo.RequestRetries(0), kgo.DialTimeout(time.Second))
	if err != nil {
		return err
	}
	defer client.Close()
	metadata, err := kadm.NewClient(client).BrokerMetadata(ctx)
	if err != nil {
		return err
	}
	if len(metadata.Brokers) < want || metadata.Controller < 0 {
		return fmt.Errorf("it sees %d brokers of %d, and the controller %d", len(metadata.Brokers), want, metadata.Controller)
	}
	return nil
}
