package cli

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
)

// kafkaError adds to a failed request what a person can do about it.
func kafkaError(err error) error {
	switch {
	case errors.Is(err, kerr.SaslAuthenticationFailed):
		return fmt.Errorf("Kafka: user or password is wrong: see kafka.sasl (%w)", err)
	case errors.Is(err, kerr.UnsupportedSaslMechanism):
		return fmt.Errorf("Kafka: the brokers do not know this mechanism: see kafka.sasl.mechanism (%w)", err)
	case untrusted(err):
		return fmt.Errorf("Kafka: the broker's certificate is not trusted: see kafka.tls.ca_file and kafka.tls.server_name (%w)", err)
	case closed(err):
		return fmt.Errorf("Kafka: the broker closed the connection: it goes down, or it wants other settings in kafka.tls and kafka.sasl (%w)", err)
	case kafkaPasses(err):
		return fmt.Errorf("Kafka: no broker answers: see kafka.brokers, and kafka.tls for whether they want TLS (%w)", err)
	case !answered(err) && !errors.Is(err, context.Canceled):
		return fmt.Errorf("Kafka: what answers cannot be understood: see kafka.brokers for the port, and kafka.tls for whether it wants TLS (%w)", err)
	}
	return fmt.Errorf("Kafka: %w", err)
}

// answered reports that a broker has said what is wrong, in Kafka's own words.
func answered(err error) bool {
	_, ok := errors.AsType[*kerr.Error](err)
	return ok
}

// closed reports that a broker hung up: it is going down, or it wants TLS or SASL.
func closed(err error) bool {
	_, first := errors.AsType[*kgo.ErrFirstReadEOF](err)
	return first || errors.Is(err, io.EOF)
}

func untrusted(err error) bool {
	_, verification := errors.AsType[*tls.CertificateVerificationError](err)
	_, authority := errors.AsType[x509.UnknownAuthorityError](err)
	_, host := errors.AsType[x509.HostnameError](err)
	return verification || authority || host
}

// kafkaPasses reports whether what Kafka or the way to it answered can pass by
// itself: brokers that start, move or are out of reach.
func kafkaPasses(err error) bool {
	if untrusted(err) {
		return false
	}
	_, network := errors.AsType[net.Error](err)
	return network || kerr.IsRetriable(err) || closed(err) || errors.Is(err, context.DeadlineExceeded)
}
