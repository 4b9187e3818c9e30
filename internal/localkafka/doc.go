// Package localkafka starts real Apache Kafka brokers as ordinary child
// processes: for tests, benchmarks and developers. It needs Java 17 or newer;
// Kafka itself comes from its Maven jars, fetched once by mvn into the user's
// cache. There is no ZooKeeper and no container: brokers run in KRaft mode,
// each being broker and controller at once.
//
// A [Cluster] of one broker is up in about five seconds. Single brokers can be
// stopped, killed, frozen and started again, and listeners can ask for TLS and
// SASL, so that a client's security settings are proven against the real thing.
//
// Brokers and their files go away with [Cluster.Stop], and also when the parent
// is killed; package localproc tells how.
package localkafka
