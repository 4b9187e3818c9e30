package cli

import (
	"cmp"
	"errors"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/claimq/claimq/dedup"
	"github.com/claimq/claimq/internal/nearest"
)

// queue returns the configuration of a queue, or an error that names the nearest.
func (c *Config) queue(name string) (QueueConfig, error) {
	queue, known := c.Queues[name]
	if known {
		return queue, nil
	}
	names := slices.Sorted(maps.Keys(c.Queues))
	if len(names) == 0 {
		return QueueConfig{}, usageError("queue %q: the configuration has no queues; give it with --config", name)
	}
	return QueueConfig{}, usageError("queue %q is not configured; did you mean %s? there is: %s",
		name, nearest.Of(name, names), strings.Join(names, ", "))
}

// rules returns what a queue takes for a message's identity. All that is wrong in
// its fields is reported; whether the rules go together is for dedup and the
// consumer to say.
func (c *Config) rules(name string) (dedup.Rules, error) {
	queue, err := c.queue(name)
	if err != nil {
		return dedup.Rules{}, err
	}
	rules, err := queue.rules([]string{"queues", name})
	if err != nil {
		return dedup.Rules{}, configError(placed(c, err))
	}
	return rules, nil
}

func (q *QueueConfig) rules(path []string) (rules dedup.Rules, err error) {
	var errs [5]error
	rules.ID, errs[0] = parseSources(append(path, "id"), q.ID)
	rules.Tenant, errs[1] = parseSources(append(path, "tenant"), q.Tenant)
	rules.Operation, errs[2] = parseSources(append(path, "operation"), q.Operation)
	if rules.OnMissing, err = dedup.ParseMissingPolicy(cmp.Or(q.OnMissing, dedup.MissingReject.String())); err != nil {
		errs[3] = fieldErrorf(append(path, "on_missing"), "%v", err)
	}
	if rules.Fingerprint, err = dedup.ParseFingerprint(cmp.Or(q.Fingerprint, dedup.Raw().String())); err != nil {
		errs[4] = fieldErrorf(append(path, "fingerprint"), "%v", err)
	}
	return rules, errors.Join(errs[:]...)
}

// parseSources reads a chain of sources.
func parseSources(path []string, texts Sources) (sources []dedup.Source, err error) {
	var errs []error
	for i, text := range texts {
		source, err := dedup.ParseSource(text)
		if err != nil {
			errs = append(errs, fieldErrorf(append(path, "["+strconv.Itoa(i)+"]"), "%v", err))
			continue
		}
		sources = append(sources, source)
	}
	return sources, errors.Join(errs...)
}
