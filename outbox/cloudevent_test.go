package outbox

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/twmb/franz-go/pkg/kgo"
)

func TestACloudEventArrivesWithItsHeaders(t *testing.T) {
	t.Parallel()
	s := newStage(t, 1, "t")
	reader, r := s.reader("t"), s.relay(RelayConfig{})
	full := keyed("t", "k", `{"n":1}`)
	full.Headers = []kgo.RecordHeader{{Key: "own", Value: []byte("x")}, {Key: "ce_type", Value: []byte("mine")}}
	full.CloudEvent = &CloudEvent{
		Source: "/shop/orders", Type: "order.placed", Subject: "4711", DataSchema: "urn:s", DataContentType: "application/json",
		Time:       time.Date(2026, 1, 31, 13, 0, 0, 5e8, time.FixedZone("", 3600)),
		Extensions: []CloudEventExtension{{"tenant", "acme"}, {"partitionkey", "k"}},
	}
	least := keyed("t", "k", "2")
	least.CloudEvent = &CloudEvent{Source: "s", Type: "t"}
	plain := keyed("t", "k", "3")
	inTx(t, s.db, func(ctx context.Context, tx pgx.Tx) error { return s.outbox.Add(ctx, tx, full, least, plain) })
	s.drain(r)
	reader.untilCount(t, 3)
	got := map[string][]string{}
	for _, record := range reader.all() {
		for _, h := range record.Headers {
			got[string(record.Value)] = append(got[string(record.Value)], h.Key+"="+string(h.Value))
		}
	}
	want := map[string][]string{
		`{"n":1}`: {
			"own=x", "ce_type=mine", "ce_specversion=1.0", "ce_id=" + full.ID.String(), "ce_source=/shop/orders", "ce_subject=4711",
			"ce_time=2026-01-31T12:00:00.5Z", "ce_dataschema=urn:s", "content-type=application/json", "ce_tenant=acme", "ce_partitionkey=k",
			"id=" + full.ID.String(),
		},
		"2": {"ce_specversion=1.0", "ce_id=" + least.ID.String(), "ce_source=s", "ce_type=t", "id=" + least.ID.String()},
		"3": {"id=" + plain.ID.String()},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("headers (-want +got):\n%s", diff)
	}
}

// The id that is derived from a claim is the event's too.
func TestACloudEventsIDIsTheEffects(t *testing.T) {
	t.Parallel()
	cause := Cause{Claim: uuid.New()}
	box, err := New(Config{})
	if err != nil {
		t.Fatal(err)
	}
	effect := Effect{Name: "placed", Topic: "t", CloudEvent: &CloudEvent{Source: "s", Type: "t"}}
	rows, err := box.rows(1, func(int) (Cause, *Effect) { return cause, &effect })
	if err != nil {
		t.Fatal(err)
	}
	var text headerText
	keys, values := text.render(effect.CloudEvent.headers(cause.EffectID("placed", 0), nil))
	if rows.headerKeys[0] != keys || rows.headerValues[0] != values {
		t.Errorf("headers %s %s, want those of the derived id", rows.headerKeys[0], rows.headerValues[0])
	}
}

func TestWhatIsNoCloudEventIsRefused(t *testing.T) {
	t.Parallel()
	box, err := New(Config{MaxBytes: 200})
	if err != nil {
		t.Fatal(err)
	}
	extension := func(names ...string) *CloudEvent {
		c := &CloudEvent{Source: "s", Type: "t"}
		for _, name := range names {
			c.Extensions = append(c.Extensions, CloudEventExtension{name, "v"})
		}
		return c
	}
	for name, test := range map[string]struct {
		event *CloudEvent
		want  error
	}{
		"no source":         {&CloudEvent{Type: "t"}, ErrCloudEvent},
		"no type":           {&CloudEvent{Source: "s"}, ErrCloudEvent},
		"not UTF-8":         {&CloudEvent{Source: "s", Type: "t\xff"}, ErrCloudEvent},
		"capitals":          {extension("Tenant"), ErrCloudEvent},
		"an attribute":      {extension("id"), ErrCloudEvent},
		"twice":             {extension("a", "a"), ErrCloudEvent},
		"a long name":       {extension(strings.Repeat("a", 21)), ErrCloudEvent},
		"no name":           {extension(""), ErrCloudEvent},
		"more than allowed": {&CloudEvent{Source: "s", Type: "t", Subject: strings.Repeat("x", 200)}, ErrTooLarge},
		"good":              {extension("a", "b1"), nil},
	} {
		effect := keyed("t", "k", "v")
		effect.CloudEvent = test.event
		if err := box.Check(Cause{}, []Effect{effect}); !errors.Is(err, test.want) {
			t.Errorf("%s: %v, want %v", name, err, test.want)
		}
	}
}
