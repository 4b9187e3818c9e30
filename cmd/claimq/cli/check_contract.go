package cli

import (
	"cmp"
	"fmt"
	"strings"
	"time"

	"github.com/claimq/claimq/consumer"
	"github.com/claimq/claimq/dedup"
	"github.com/claimq/claimq/delayq"
)

// defaultRetention is the consumer's: how long ids are remembered unless told.
const defaultRetention = 8 * 24 * time.Hour

// A contract is what a queue promises, in words.
type contract struct {
	Queue       string `json:"queue"`
	Owner       string `json:"owner,omitempty"`
	Reads       string `json:"reads"`
	ID          string `json:"id"`
	Missing     string `json:"without_id"`
	Scope       string `json:"scope"`
	Fingerprint string `json:"fingerprint"`
	Remembered  string `json:"remembered"`
	Repeat      string `json:"repeat"`
	Conflict    string `json:"conflict"`
	Unknown     string `json:"unknown"`
	Failure     string `json:"failure"`
	Order       string `json:"order"`
	Arithmetic  string `json:"arithmetic"`

	topics    []string
	retention time.Duration
	rule      string
	group     string
}

type contractLine struct{ name, text string }

func (c *contract) lines() []contractLine {
	return []contractLine{
		{"owner", cmp.Or(c.Owner, "nobody is named")},
		{"reads", c.Reads},
		{"id", c.ID},
		{"without id", c.Missing},
		{"scope", c.Scope},
		{"fingerprint", c.Fingerprint},
		{"remembered", c.Remembered},
		{"repeat", c.Repeat},
		{"conflict", c.Conflict},
		{"unknown", c.Unknown},
		{"failure", c.Failure},
		{"order", c.Order},
		{"arithmetic", c.Arithmetic},
	}
}

// contractOf tells what a valid configuration promises.
func contractOf(c consumer.Config) contract {
	retention := cmp.Or(c.Retention, defaultRetention)
	group := cmp.Or(c.Group, c.Queue)
	result := contract{
		Queue: c.Queue,
		Owner: c.Owner.Team,
		Reads: fmt.Sprintf("%s as consumer group %s, at first from: %s", strings.Join(c.Topics, ", "), group, c.Start),
		Unknown: "a COMMIT whose answer is lost is settled in the database, by an INSERT that waits for the old session: " +
			"the batch runs again only when it did not commit",
		topics: c.Topics, retention: retention, rule: c.Rules.String(), group: group,
	}
	if c.Owner.Contact != "" {
		result.Owner = strings.TrimSpace(c.Owner.Team + " (" + c.Owner.Contact + ")")
	}
	result.Failure = failureText(c.Retry)
	result.Order = orderText(c)
	if c.Claims == consumer.ClaimNone {
		result.withoutClaims()
		return result
	}
	result.ID = chain(c.Rules.ID, "no rule")
	if c.Rules.OnMissing == dedup.MissingOffset {
		result.Missing = "known by topic, partition and offset: what its producer sends twice is two messages"
	} else {
		result.Missing = "dead letter, reason missing_id"
	}
	result.Scope = fmt.Sprintf("this queue; tenant: %s; operation: %s", chain(c.Rules.Tenant, "none"), chain(c.Rules.Operation, "none"))
	result.Fingerprint = c.Rules.Fingerprint.String()
	result.Remembered = "for " + formatDuration(retention)
	result.Repeat = "dropped and counted, the handler is not called"
	if c.Repeats == consumer.RepeatsLog {
		result.Repeat = "dropped, counted and logged, the handler is not called"
	}
	result.Conflict = "the id with another fingerprint is a dead letter at once, reason conflict"
	if c.Rules.Fingerprint.Version() == 0 {
		result.Conflict = "not detected: without a fingerprint the id alone makes a repeat, whatever the message holds"
	}
	result.Arithmetic = arithmetic(retention, c.Retry.Horizon(), c.ResendHorizon, c.ReplayWindow)
	return result
}

func (c *contract) withoutClaims() {
	c.ID = "none: nothing is claimed, each offset is handled once"
	c.Missing = "handled like any other"
	c.Scope, c.Fingerprint = "none", "none"
	c.Remembered = "positions only"
	c.Repeat = "what a producer sends twice is handled twice: the handler must be idempotent by itself"
	c.Conflict = "not detected"
	c.Arithmetic = "nothing has to be remembered"
}

// chain tells a chain of sources.
func chain(sources []dedup.Source, none string) string {
	if len(sources) == 0 {
		return none
	}
	texts := make([]string, len(sources))
	for i, source := range sources {
		texts[i] = source.String()
	}
	return strings.Join(texts, ", else ")
}

// failureText tells when attempts are made, jitter aside.
func failureText(policy delayq.Policy) string {
	const listed = 6
	times := []string{"at once"}
	var at time.Duration
	attempts := 1
	exact := policy
	exact.Jitter, exact.NoJitter = 0, true
	for {
		delay, again := exact.Next(attempts, at, 0, nil)
		if !again {
			break
		}
		attempts++
		at += delay
		if len(times) < listed {
			times = append(times, "after "+formatDuration(at))
		}
		if attempts > 10_000 {
			return "attempts without end: max_attempts is more than 10000"
		}
	}
	if attempts == 1 {
		return "1 attempt, then a dead letter"
	}
	text := fmt.Sprintf("%d attempts: %s", attempts, strings.Join(times, ", "))
	if attempts > listed {
		text += fmt.Sprintf(", … after %s", formatDuration(at))
	}
	return text + "; then a dead letter"
}

func orderText(c consumer.Config) string {
	switch c.Order {
	case consumer.OrderNone:
		return "none is kept when messages fail"
	case consumer.OrderPartition:
		return "by partition: a failed message holds its whole partition" + afterDeath(c)
	case consumer.OrderKey:
	}
	return "by " + chain(c.OrderBy, "record key") + ": what comes after a failed message of its key waits behind it" + afterDeath(c)
}

func afterDeath(c consumer.Config) string {
	if c.OnDead == consumer.Block {
		return "; a dead one holds it until it is settled"
	}
	return "; a dead one lets it go on"
}

// arithmetic shows that what may bring an id again fits into what is remembered.
// Configurations where it does not were refused.
func arithmetic(retention, retries, resend, replay time.Duration) string {
	sum := retries + resend + replay
	return fmt.Sprintf("retries %s + resend horizon %s + replay window %s = %s, of %s remembered: %s to spare",
		formatDuration(retries), formatDuration(resend), formatDuration(replay), formatDuration(sum),
		formatDuration(retention), formatDuration(retention-sum))
}
