package bench

import (
	"fmt"

	"github.com/twmb/franz-go/pkg/kfake"
)

// StartKafka starts a broker in this process, for a measurement on a machine that
// has none. It measures the consumer's own work: no disk and no replication take
// part. stop ends it and may be called once.
func StartKafka() (brokers []string, stop func(), err error) {
	cluster, err := kfake.NewCluster(kfake.NumBrokers(1))
	if err != nil {
		return nil, nil, fmt.Errorf("in-process Kafka: %w", err)
	}
	return cluster.ListenAddrs(), cluster.Close, nil
}
