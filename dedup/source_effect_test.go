package dedup

import (
	"testing"

	"github.com/twmb/franz-go/pkg/kgo"
)

func TestEffectFindsTheIDsOfEffectsOnly(t *testing.T) {
	t.Parallel()
	const id = "0195d3a4-1d1c-5cc0-8f0e-3d7f3f6f2b11"
	source, err := ParseSource("effect")
	if err != nil || source.String() != "effect" || source.String() != Effect().String() {
		t.Fatalf("ParseSource(effect) = %v, %v", source, err)
	}
	if _, err := ParseSource("effect:id"); err == nil {
		t.Error("effect takes an argument")
	}
	for name, test := range map[string]struct {
		headers []kgo.RecordHeader
		want    string
	}{
		"an effect's":              {[]kgo.RecordHeader{{Key: "id", Value: []byte(id)}}, id},
		"the last counts":          {[]kgo.RecordHeader{{Key: "id", Value: []byte("4711")}, {Key: "id", Value: []byte(id)}}, id},
		"in capitals":              {[]kgo.RecordHeader{{Key: "id", Value: []byte("0195D3A4-1D1C-5CC0-8F0E-3D7F3F6F2B11")}}, id},
		"an entity's number":       {[]kgo.RecordHeader{{Key: "id", Value: []byte("4711")}}, ""},
		"36 characters of another": {[]kgo.RecordHeader{{Key: "id", Value: []byte("customer-4711-in-the-shop-at-the-end")}}, ""},
		"sixteen bytes":            {[]kgo.RecordHeader{{Key: "id", Value: []byte("0123456789abcdef")}}, ""},
		"in braces":                {[]kgo.RecordHeader{{Key: "id", Value: []byte("{" + id + "}")}}, ""},
		"nil":                      {[]kgo.RecordHeader{{Key: "id", Value: []byte("00000000-0000-0000-0000-000000000000")}}, ""},
		"null":                     {[]kgo.RecordHeader{{Key: "id"}}, ""},
		"none":                     {nil, ""},
	} {
		got, found, err := source.Find(&kgo.Record{Headers: test.headers})
		if err != nil || got != test.want || found != (test.want != "") {
			t.Errorf("%s: %q, %v, %v, want %q", name, got, found, err, test.want)
		}
	}
	if err := (Rules{ID: []Source{Effect()}}).Validate(); err != nil {
		t.Error(err)
	}
}
