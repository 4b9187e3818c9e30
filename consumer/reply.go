package consumer

import (
	"fmt"
	"slices"
	"strings"

	"github.com/google/uuid"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/claimq/claimq/dedup"
	"github.com/claimq/claimq/outbox"
)

// OnDuplicate says what a repeat of a message gets. Its handler never runs.
type OnDuplicate uint8

const (
	// Drop gives a repeat nothing.
	Drop OnDuplicate = iota
	// SendReply answers every message that succeeds with a record that holds the
	// handler's result, and every repeat of it with the same record again: the same
	// value under the same effect id. See Config.Reply.
	SendReply
)

// String returns the configuration's word.
func (o OnDuplicate) String() string { return [...]string{"drop", "reply"}[o] }

// Reply says where answers go under SendReply. They leave through the outbox, so the
// first is out exactly when the write is there.
//
// The value is what the handler left with SetResult (a SQL handler: the column
// result), empty when it left nothing. The header claimq-status tells which kind of
// answer it is: StatusResult, or StatusExpired with an empty value for a repeat whose
// result is gone: it has outlived Config.ResultLifetime, or the claim was imported
// or made under Drop. That answer has an effect id of its own, the same on every
// copy. The correlation id is that of the message which is answered.
type Reply struct {
	// Topic is where answers go. Required under SendReply; it must not be one of
	// Config.Topics.
	Topic string
	// Key finds the answer's key in the message; where it finds none, or cannot read
	// the message, the key is null. Nil: the message's own key.
	Key dedup.Source
}

// HeaderStatus is the header of answers that tells which kind they are.
const HeaderStatus = "claimq-status"

// The values of HeaderStatus.
const (
	// StatusResult: the value is the result of the message.
	StatusResult = "result"
	// StatusExpired: the message was handled, and its result is gone.
	StatusExpired = "result_expired"
)

// The names of answers among the effects of a message. Their ids derive from them,
// so they never change. A handler cannot use them: see reservedEffect.
const (
	replyName        = "claimq.reply"
	replyExpiredName = "claimq.reply.expired"
)

// reservedEffect reports whether an effect's name is claimq's own.
func reservedEffect(name string) bool { return strings.HasPrefix(name, "claimq.") }

func (c *Config) checkReply() (errs []error) {
	if c.OnDuplicate == Drop {
		if c.Reply.Topic != "" || c.Reply.Key != nil {
			errs = append(errs, c.wrong("Reply", "it says where answers go, and OnDuplicate is Drop: set OnDuplicate to SendReply, or leave Reply out"))
		}
		return errs
	}
	box, err := outbox.New(outbox.Config{})
	if err == nil {
		err = box.Check(outbox.Cause{}, []outbox.Effect{{ID: uuid.Max, Topic: c.Reply.Topic}})
	}
	switch {
	case c.Claims == ClaimNone:
		errs = append(errs, c.wrong("OnDuplicate", "a queue with ClaimNone knows no repeats: claim ids, or use Drop"))
	case c.Reply.Topic == "":
		errs = append(errs, c.wrong("Reply.Topic", "is missing: say where answers go, or set OnDuplicate to Drop"))
	case slices.Contains(c.Topics, c.Reply.Topic):
		errs = append(errs, c.wrong("Reply.Topic", "%q is also read: an answer would come back as a message; name another topic", c.Reply.Topic))
	case err != nil:
		errs = append(errs, c.wrong("Reply.Topic", "%q: %v", c.Reply.Topic, err))
	}
	return errs
}

// answers reports whether t, which has succeeded, is answered.
func (a *attempt) answers(t *task) bool {
	return a.c.config.OnDuplicate == SendReply && t.verdict.claimed
}

// answer makes the answer to a message: with its result, or, when there is none any
// more, saying so.
func (a *attempt) answer(t *task, result []byte, expired bool) outbox.Caused {
	effect := outbox.Effect{
		Name: replyName, Topic: a.c.config.Reply.Topic, Key: t.record.Key, Value: result,
		Headers: []kgo.RecordHeader{{Key: HeaderStatus, Value: []byte(StatusResult)}},
		// Nobody could do anything about a message whose key is too long to be answered.
		NoSizeLimit: true,
	}
	if expired {
		effect.Name, effect.Headers[0].Value = replyExpiredName, []byte(StatusExpired)
	}
	if effect.Value == nil {
		effect.Value = []byte{} // null would be a tombstone
	}
	if source := a.c.config.Reply.Key; source != nil {
		key, err := findBytes(source, t.message)
		if err != nil {
			key = nil
		}
		effect.Key = key
	}
	// Said, because answers of one batch may be copies of one another: see queueEffects.
	cause := t.cause()
	effect.ID = cause.EffectID(effect.Name, 0)
	return outbox.Caused{Cause: cause, Effect: effect}
}

// answerRepeats makes the answers to the tasks that turned out to be repeats, those
// of one batch included. The results are read in a statement after the claims', so
// that of a first copy which committed while its repeat waited for it is there.
func (a *attempt) answerRepeats() (answers []outbox.Caused, err error) {
	if a.c.config.OnDuplicate != SendReply || a.flight == nil {
		return nil, nil
	}
	var repeats []*task
	var digests []uuid.UUID
	for _, t := range a.asked {
		if t.verdict.fate != duplicate {
			continue
		}
		repeats = append(repeats, t)
		if !a.isLaterCopy(t) {
			digests = append(digests, t.message.claim)
		}
	}
	var results map[uuid.UUID][]byte
	if len(digests) > 0 {
		if results, err = a.c.claims.Results(a.ctx, a.tx, digests); err != nil {
			return nil, fmt.Errorf("answer repeats: %w", err)
		}
	}
	for _, t := range repeats {
		if a.isLaterCopy(t) {
			answers = append(answers, a.answer(t, a.firstOf(t).message.result, false))
			continue
		}
		result, there := results[t.message.claim]
		answers = append(answers, a.answer(t, result, !there))
	}
	return answers, nil
}
