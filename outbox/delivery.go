package outbox

import (
	"errors"
	"fmt"
	"strings"

	"github.com/twmb/franz-go/pkg/kerr"
)

// A delivery is one publish: the wave that is being filled, and what was refused.
type delivery struct {
	*publisher

	wait       waiter
	wave       []*outRow
	bytes      int
	topicBytes map[string]int
	blocked    map[orderKey]bool // keys of rows that are not out: later ones wait
	refused    []refusal
}

func (d *delivery) refuse(row *outRow, scope, reason string, tried bool) {
	d.refused = append(d.refused, refusal{row, scope, reason, tried})
	if key, ordered := row.inOrder(); ordered {
		d.blocked[key] = true
	}
}

// waits refuses a row whose key is blocked, and reports whether it did.
func (d *delivery) waits(row *outRow) bool {
	key, ordered := row.inOrder()
	if !ordered || !d.blocked[key] {
		return false
	}
	d.refuse(row, scopeKey, heldBehind(scopeKey), false)
	return true
}

// add puts a row into the wave, and sends the wave first when it is full. A row
// that may exceed the largest batch goes alone: the client refuses it by itself,
// and would go on with the rows of its key behind it.
func (d *delivery) add(row *outRow) error {
	size := row.wireSize()
	limit, learned := d.limits[row.topic]
	full := d.bytes+size > d.maxBatch || learned && d.topicBytes[row.topic]+size > limit
	if full && len(d.wave) > 0 {
		if err := d.flush(); err != nil {
			return err
		}
		if d.waits(row) {
			return nil
		}
	}
	if d.topicBytes == nil {
		d.topicBytes = map[string]int{}
	}
	d.wave = append(d.wave, row)
	d.bytes += size
	d.topicBytes[row.topic] += size
	return nil
}

// flush sends the wave and settles each of its rows.
func (d *delivery) flush() error {
	wave := d.wave
	d.wave, d.bytes, d.topicBytes = nil, 0, nil
	return d.settle(wave)
}

// settle sends rows that fit one wave, until each is out or refused. A refusal
// hits all rows of its partition's batch: the topic's fault is shared by all of
// them, a row's own has to be found.
func (d *delivery) settle(rows []*outRow) error {
	if len(rows) == 0 {
		return nil
	}
	errs, err := d.send(d.wait, rows)
	if err != nil {
		return err
	}
	var suspects []*outRow
	var reason error
	for i, row := range rows {
		switch err := errs[i]; {
		case err == nil:
		case scopeOf(err) == scopeTopic:
			delete(d.known, row.topic)
			delete(d.loaded, row.topic)
			if !d.waits(row) {
				d.refuse(row, scopeTopic, reasonText(err), true)
			}
		default:
			suspects = append(suspects, row)
			reason = err
		}
	}
	if len(suspects) == 0 {
		d.raiseLimits(rows)
		return nil
	}
	return d.isolate(suspects, reason)
}

// isolate halves rows of refused batches until the culprits are alone. The first
// half is settled before the second is looked at, so that rows of a key whose
// culprit is found in the first wait in the second.
func (d *delivery) isolate(rows []*outRow, reason error) error {
	if len(rows) == 1 {
		if !d.waits(rows[0]) {
			d.refuse(rows[0], scopeRow, reasonText(reason), true)
		}
		return nil
	}
	if errors.Is(reason, kerr.MessageTooLarge) {
		d.learnLimits(rows)
	}
	for _, half := range [][]*outRow{rows[:len(rows)/2], rows[len(rows)/2:]} {
		free := make([]*outRow, 0, len(half))
		for _, row := range half {
			if !d.waits(row) {
				free = append(free, row)
			}
		}
		if err := d.settle(free); err != nil {
			return err
		}
	}
	return nil
}

// learnLimits halves what a wave may hold of the topics of rows that were too
// much together. A topic's max.message.bytes limits the batch: where it lies
// below the client's, every full wave would be refused and halved again.
func (d *delivery) learnLimits(rows []*outRow) {
	sum := map[string]int{}
	for _, row := range rows {
		sum[row.topic] += row.wireSize()
	}
	for topic, bytes := range sum {
		if limit, learned := d.limits[topic]; !learned || bytes/2 < limit {
			d.limits[topic] = max(bytes/2, 1<<10)
		}
	}
}

// raiseLimits takes back some of a limit with each wave that passes: it was
// learned with a record in it that was too large by itself, or the topic's
// configuration has changed.
func (d *delivery) raiseLimits(rows []*outRow) {
	if len(d.limits) == 0 {
		return
	}
	for _, row := range rows {
		if limit, learned := d.limits[row.topic]; learned {
			if limit += limit / 64; limit < d.maxBatch {
				d.limits[row.topic] = limit
			} else {
				delete(d.limits, row.topic)
			}
		}
	}
}

// reasonText is what an operator reads: bounded, and text that Postgres takes.
func reasonText(err error) string {
	hint := ""
	switch {
	case errors.Is(err, kerr.UnknownTopicOrPartition), errors.Is(err, kerr.UnknownTopicID):
		hint = "create the topic"
	case errors.Is(err, kerr.TopicAuthorizationFailed):
		hint = "grant the relay's user Write and Describe on the topic"
	case errors.Is(err, kerr.MessageTooLarge), errors.Is(err, kerr.RecordListTooLarge):
		hint = "raise the topic's max.message.bytes, or discard the record"
	}
	text := err.Error()
	if hint != "" {
		text = fmt.Sprintf("%s (%s)", text, hint)
	}
	text = strings.ReplaceAll(strings.ToValidUTF8(text, "\uFFFD"), "\x00", "\uFFFD")
	const limit = 500
	if len(text) > limit {
		text = strings.ToValidUTF8(text[:limit], "")
	}
	return text
}
