package consumer

import (
	"log/slog"

	"github.com/claimq/claimq/dedup"
	"github.com/claimq/claimq/dlq"
	"github.com/claimq/claimq/outbox"
)

// feed makes the records for the dead-letter topic. They leave through the outbox,
// so a letter is never in the topic without being a row; a topic that is missing
// holds up these records and nothing else.
func (c *Consumer) feed(letters []*dlq.Letter) []outbox.Caused {
	if c.config.DeadLetterTopic == "" {
		return nil
	}
	fed := make([]outbox.Caused, 0, len(letters))
	for _, l := range letters {
		record, err := l.Feed(c.config.DeadLetterTopic, dlq.FeedOptions{})
		if err != nil {
			// The row is what counts: the letter is not lost by staying out of the topic.
			c.config.Logger.Error("a dead letter stays out of its topic", slog.String("queue", c.config.Queue),
				slog.String("letter", l.ID.String()), slog.Any("error", err))
			continue
		}
		fed = append(fed, outbox.Caused{Effect: outbox.Effect{
			ID: record.EffectID, Topic: record.Topic, Key: record.Key, Value: record.Value, Headers: record.Headers,
			Unordered: true, NoSizeLimit: true,
		}})
	}
	return fed
}

// shown is the id as people may see it in the database.
func (c *Consumer) shown(identity *dedup.Identity) string {
	if c.config.HideIDs {
		return ""
	}
	return identity.Shown()
}
