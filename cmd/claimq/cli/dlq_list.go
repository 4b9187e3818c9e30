package cli

import (
	"encoding/hex"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/google/uuid"
	"github.com/spf13/cobra"

	"github.com/claimq/claimq/dlq"
)

// letterView is a dead letter as it is printed. Record is null unless --payload
// asks for it.
type letterView struct {
	Letter      uuid.UUID    `json:"letter"`
	Queue       string       `json:"queue"`
	State       string       `json:"state"`
	Round       int          `json:"round"`
	Reason      string       `json:"reason"`
	Class       string       `json:"class"`
	Message     string       `json:"message"`
	Stack       string       `json:"stack,omitempty"`
	Cause       uuid.UUID    `json:"cause"`
	ID          string       `json:"id"`
	Tenant      *string      `json:"tenant"`
	Operation   *string      `json:"operation"`
	Claim       string       `json:"claim,omitempty"`
	Source      *claimPlace  `json:"source"`
	Attempts    int          `json:"attempts"`
	Starts      int          `json:"starts"`
	Crashes     int          `json:"crashes"`
	Interrupted int          `json:"interrupted"`
	Replays     int          `json:"replays"`
	HoldsKey    bool         `json:"holds_key"`
	FirstSeen   string       `json:"first_seen"`
	DiedAt      string       `json:"died_at"`
	SettledAt   string       `json:"settled_at,omitempty"`
	Record      *payloadView `json:"record"`
}

// payloadView is what a message holds, shown as --payload says; nil is null.
type payloadView struct {
	Key     *string         `json:"key"`
	Value   *string         `json:"value,omitempty"`
	JSON    json.RawMessage `json:"json,omitempty"`
	Headers []headerView    `json:"headers"`
}

type headerView struct {
	Name  string  `json:"name"`
	Value *string `json:"value"`
}

func viewLetter(l *dlq.Letter, payload string) letterView {
	v := letterView{
		Letter: l.ID, Queue: l.QueueName, State: string(l.State), Round: l.Round, Reason: string(l.Reason), Class: l.ErrorClass,
		Message: l.ErrorMessage, Stack: l.Stack, Cause: l.Cause, ID: l.Shown, Tenant: l.Tenant, Operation: l.Operation,
		Attempts: l.Attempts, Starts: l.Starts, Crashes: l.Crashes, Interrupted: l.Interrupted, Replays: l.ReplayCount, HoldsKey: l.HoldsKey,
		FirstSeen: jsonTime(l.FirstSeen), DiedAt: jsonTime(l.DiedAt),
	}
	if l.Claim.Valid {
		v.Claim = l.Claim.UUID.String()
	}
	if !l.SettledAt.IsZero() {
		v.SettledAt = jsonTime(l.SettledAt)
	}
	if l.Record == nil {
		return v
	}
	if l.Source != nil {
		v.Source = &claimPlace{Topic: l.Record.Topic, Partition: l.Source.Partition, Offset: l.Source.Offset}
	}
	if payload == "" {
		return v
	}
	v.Record = &payloadView{Key: shownBytes(l.Record.Key, payload), Headers: []headerView{}}
	if payload == "json" && json.Valid(l.Record.Value) {
		v.Record.JSON = l.Record.Value
	} else {
		v.Record.Value = shownBytes(l.Record.Value, payload)
	}
	for _, h := range l.Record.Headers {
		name := h.Key
		if !utf8.ValidString(name) {
			name = strconv.Quote(name)
		}
		v.Record.Headers = append(v.Record.Headers, headerView{Name: name, Value: shownBytes(h.Value, payload)})
	}
	return v
}

// shownBytes writes bytes as hex, or as text when they are text.
func shownBytes(b []byte, payload string) *string {
	if b == nil {
		return nil
	}
	text := string(b)
	switch {
	case payload == "hex":
		text = hex.EncodeToString(b)
	case !utf8.Valid(b):
		text = strconv.Quote(text)
	}
	return &text
}

func checkPayload(payload string) error {
	switch payload {
	case "", "text", "json", "hex":
		return nil
	}
	return usageError("--payload %q is none of: text, json, hex", payload)
}

func newDLQListCommand(env *Env) *cobra.Command {
	var flags selectFlags
	var limit int
	var payload string
	var asJSON bool
	command := &cobra.Command{
		Use:   "list",
		Short: "List dead letters, those that died first first",
		Long: `Lists letters without what they hold; --payload shows that too. Without --state it
lists what waits for a decision or is on its way back. Exit code 3 says that there is
none.`,
		Example: `  claimq dlq list --queue orders --reason permanent
  claimq dlq list --header type=order-cancelled --text "4711" --payload text --json`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := checkPayload(payload); err != nil {
				return err
			}
			pool, store, config, err := env.openLetters(cmd.Context())
			if err != nil {
				return err
			}
			defer pool.Close()
			selection, err := flags.selection(cmd.Context(), pool, config, nil)
			if err != nil {
				return err
			}
			letters, err := store.Choose(cmd.Context(), pool, flags.in(selection, dlq.Dead, dlq.Replaying), nil, limit)
			if err != nil {
				return err
			}
			return env.printLetters(letters, payload, asJSON)
		},
	}
	flags.add(command)
	command.Flags().IntVar(&limit, "limit", 100, "at most this many `letters`")
	command.Flags().StringVar(&payload, "payload", "", "show key, value and headers as `text`, json or hex")
	command.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return command
}

func (e *Env) printLetters(letters []*dlq.Letter, payload string, asJSON bool) error {
	views := make([]letterView, 0, len(letters))
	header := []string{"LETTER", "QUEUE", "STATE", "ID", "SOURCE", "DIED", "ROUND", "ATTEMPTS", "REASON", "MESSAGE"}
	if payload != "" {
		header = append(header, "KEY", "VALUE")
	}
	t := newTable(header...).alignRight(6, 7)
	for _, l := range letters {
		v := viewLetter(l, payload)
		views = append(views, v)
		cells := []any{v.Letter, v.Queue, v.State, v.ID, v.source(), timeText(l.DiedAt), v.Round, v.Attempts, v.Reason, clipped(v.Message)}
		if payload != "" && v.Record != nil {
			cells = append(cells, orNull(v.Record.Key), clipped(v.Record.value()))
		}
		t.row(cells...)
	}
	var err error
	if asJSON {
		err = e.printJSON(map[string]any{"letters": views})
	} else if len(letters) > 0 {
		err = e.printTable(t)
	}
	if err == nil && len(letters) == 0 {
		return noLetters()
	}
	return err
}

func (v *letterView) source() string {
	if v.Source == nil {
		return "outside Kafka"
	}
	return fmt.Sprintf("%s[%d]@%d", v.Source.Topic, v.Source.Partition, v.Source.Offset)
}

func (p *payloadView) value() string {
	if p.JSON != nil {
		return string(p.JSON)
	}
	return orNull(p.Value)
}

func orNull(text *string) string {
	if text == nil {
		return "null"
	}
	return *text
}

func newDLQShowCommand(env *Env) *cobra.Command {
	var payload string
	var asJSON bool
	command := &cobra.Command{
		Use:   "show LETTER",
		Short: "Show all that is known of a dead letter",
		Long: `Shows a letter by its id: why it died, what it took, where it came from. What it
holds is shown with --payload. Exit code 3 says that there is no such letter.`,
		Example: `  claimq dlq show 0190f7e8-0000-5000-8000-000000000000 --payload json`,
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := checkPayload(payload); err != nil {
				return err
			}
			id, err := uuid.Parse(args[0])
			if err != nil {
				return usageError("%q is no letter's id: `claimq dlq list` shows them", args[0])
			}
			pool, store, _, err := env.openLetters(cmd.Context())
			if err != nil {
				return err
			}
			defer pool.Close()
			letters, err := store.Choose(cmd.Context(), pool, dlq.Selection{IDs: []uuid.UUID{id}}, nil, 1)
			if err != nil {
				return err
			}
			if len(letters) == 0 {
				return noLetters()
			}
			view := viewLetter(letters[0], payload)
			if asJSON {
				return env.printJSON(view)
			}
			return env.printLetter(&view)
		},
	}
	command.Flags().StringVar(&payload, "payload", "", "show key, value and headers as `text`, json or hex")
	command.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return command
}

func (e *Env) printLetter(v *letterView) error {
	t := newTable("FIELD", "VALUE")
	t.row("letter", v.Letter)
	t.row("queue", v.Queue)
	t.row("state", v.State)
	t.row("round", fmt.Sprintf("%d (%s, replayed %d times)", v.Round, counted(v.Attempts, "attempt", "attempts"), v.Replays))
	t.row("reason", v.Reason)
	t.row("cause", v.Cause)
	t.row("error class", v.Class)
	t.row("error", v.Message)
	t.row("id", v.ID)
	t.row("tenant", orNone(v.Tenant))
	t.row("operation", orNone(v.Operation))
	t.row("source", v.source())
	t.row("first seen", v.FirstSeen)
	t.row("died", v.DiedAt)
	t.row("settled", v.SettledAt)
	t.row("starts", fmt.Sprintf("%d, of them %d crashed and %d interrupted", v.Starts, v.Crashes, v.Interrupted))
	t.row("holds its order key", v.HoldsKey)
	if v.Record == nil {
		t.row("payload", "not shown: --payload text, json or hex")
	} else {
		t.row("key", orNull(v.Record.Key))
		t.row("value", v.Record.value())
		for _, h := range v.Record.Headers {
			t.row("header "+h.Name, orNull(h.Value))
		}
	}
	if err := e.printTable(t); err != nil {
		return err
	}
	if v.Stack != "" {
		e.printf("\n")
		for line := range strings.Lines(v.Stack) {
			e.printf("%s\n", oneLine(strings.TrimRight(line, "\n")))
		}
	}
	return nil
}
