package cli

import (
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/claimq/claimq/dedup"
	"github.com/claimq/claimq/internal/pgschema"
	"github.com/claimq/claimq/internal/queuelist"
)

// claimsStats is what claims stats prints.
type claimsStats struct {
	dedup.RingStats
	Queues []rememberView `json:"queues"`
}

// rememberView is how far back a queue remembers.
type rememberView struct {
	Queue     string `json:"queue"`
	Retention string `json:"retention"`
	// RemembersSince is nil for a queue that claims nothing.
	RemembersSince *time.Time `json:"remembers_since"`
}

func newClaimsStatsCommand(env *Env) *cobra.Command {
	var asJSON bool
	command := &cobra.Command{
		Use:   "stats",
		Short: "Show how large the claims are, and how far back each queue remembers",
		Long: `Claims lie in a ring of four segments. New ones go to the current one, and at most
two older ones are looked into; the oldest is emptied at once, without a DELETE, when
all its claims have expired. So an id is remembered for its queue's retention and up
to half of the longest retention more.

  ROLE    current: new claims go there; next: there too, while the ring moves on;
          older: looked into; leaving: to be emptied; empty
  ROWS    counted when the segment was closed; before that (~) the server's estimate
  OPENED  since when every claim stands in this segment or a newer one
  EXPIRE  when the last of its claims has expired by both clocks

Workers move the ring on. It reads no claims, so it costs little.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			config, err := env.load()
			if err != nil {
				return err
			}
			pool, err := env.openPool(cmd.Context(), config)
			if err != nil {
				return err
			}
			defer pool.Close()
			var stats claimsStats
			if stats.RingStats, err = dedup.ReadRing(cmd.Context(), pool, config.schema()); err != nil {
				return err
			}
			queues, err := queuelist.All(cmd.Context(), pool, pgschema.Schema(config.schema()))
			if err != nil {
				return err
			}
			stats.Queues = []rememberView{}
			for _, q := range queues {
				view := rememberView{Queue: q.Name, Retention: formatDuration(q.Retention)}
				if !q.ClaimsNothing {
					since := q.RememberedSince.UTC()
					view.RemembersSince = &since
				}
				stats.Queues = append(stats.Queues, view)
			}
			if asJSON {
				return env.printJSON(stats)
			}
			return env.printClaimsStats(stats)
		},
	}
	command.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return command
}

func (e *Env) printClaimsStats(stats claimsStats) error {
	t := newTable("SEGMENT", "ROLE", "ROWS", "SIZE", "OPENED", "EXPIRE").alignRight(0, 2, 3)
	for _, s := range stats.Segments {
		rows := fmt.Sprint(s.Rows)
		if s.Estimated && s.Rows > 0 {
			rows = "~" + rows
		}
		t.row(s.Segment, s.Role, rows, bytesText(s.Bytes), optionalTime(s.Opened), optionalTime(s.Expires))
	}
	if err := e.printTable(t); err != nil {
		return err
	}
	switch {
	case stats.NextRoll == nil:
		e.printf("\nThe next roll comes half a retention after the first claim of the current segment, at the earliest.\n")
	case stats.NextRoll.After(stats.At):
		e.printf("\nThe next roll comes at %s, in %s.\n", timeText(*stats.NextRoll), ageText(stats.NextRoll.Sub(stats.At)))
	default:
		e.printf("\nThe next roll has been due since %s: a worker does it, once a minute at the latest.\n", timeText(*stats.NextRoll))
	}
	e.printf("Results take %s.\n\n", bytesText(stats.ResultBytes))
	queues := newTable("QUEUE", "RETENTION", "REMEMBERS SINCE")
	for _, q := range stats.Queues {
		since := "claims nothing"
		if q.RemembersSince != nil {
			since = timeText(*q.RemembersSince) + ", " + ageText(stats.At.Sub(*q.RemembersSince)) + " ago"
		}
		queues.row(q.Queue, q.Retention, since)
	}
	return e.printTable(queues)
}

func optionalTime(at *time.Time) string {
	if at == nil {
		return ""
	}
	return timeText(*at)
}

// bytesText writes a size for people.
func bytesText(n int64) string {
	const step = 1024
	if n < step {
		return fmt.Sprintf("%d B", n)
	}
	size, unit := float64(n), ""
	for _, unit = range []string{"KiB", "MiB", "GiB", "TiB"} {
		if size /= step; size < step {
			break
		}
	}
	return fmt.Sprintf("%.1f %s", size, unit)
}
