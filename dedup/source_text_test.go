package dedup

import (
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kgo"
	"pgregory.net/rapid"
)

func TestParseSource(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ text, want string }{
		{"header:correlation-id", "header:correlation-id"},
		{"header:x y", `header:"x y"`},
		{`header:"x y"`, `header:"x y"`},
		{"header:a,b", `header:"a,b"`},
		{"header:a:b", "header:a:b"},
		{"header:ключ", `header:"ключ"`},
		{"json:order.id", "json:$.order.id"},
		{"json:$.order.id", "json:$.order.id"},
		{"json:$", "json:$"},
		{`json:lines.#(kind=="main").id`, `json:"$.lines.#(kind==\"main\").id"`},
		{`json:a\.b`, `json:$.a\.b`},
		{"xml:/order/@id", "xml:/order/@id"},
		{"xml:string(/order/@id)", `xml:"string(/order/@id)"`},
		{"key", "key"},
		{"topic", "topic"},
		{"const:eu", "const:eu"},
		{`const:"\xff"`, `const:"\xff"`},
		{"cloudevents", "cloudevents"},
		{"standard-webhooks", "standard-webhooks"},
		{"envelope", "envelope"},
		{"join(header:a,json:b)", "join(header:a,json:$.b)"},
		{"join( header:a , key )", "join(header:a,key)"},
		{`join(header:"a,b",join(key,topic))`, `join(header:"a,b",join(key,topic))`},
	} {
		source, err := ParseSource(c.text)
		if err != nil {
			t.Errorf("%s: %v", c.text, err)
			continue
		}
		if source.String() != c.want {
			t.Errorf("%s is shown as %s, want %s", c.text, source, c.want)
		}
	}
}

func TestParseSourceErrorsNameTheTextAndTheWayOut(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ text, want string }{
		{"", `unknown kind ""`},
		{"heder:x", `did you mean "header"?`},
		{"Header:x", `did you mean "header"?`},
		{"jsn:$.a", `did you mean "json"?`},
		{"cloud-events", `did you mean "cloudevents"?`},
		{"standardwebhooks", `did you mean "standard-webhooks"?`},
		{"record-key", "the kinds are header, json"},
		{"correlation-id", "unknown kind"},
		{" header:x", "a kind is missing at byte 0"},
		{"header", "header needs a colon"},
		{"header:", "name is empty"},
		{`header:""`, "name is empty"},
		{"header: x", "white space"},
		{"header:x ", "white space"},
		{`header:"x`, "quoted text"},
		{`header:"x"y`, `"y" is left over`},
		{"key:x", "key takes nothing after it"},
		{"topic()", "topic takes nothing after it"},
		{"const:", "value is empty"},
		{"func:decode", "made in Go"},
		{"json:a[0]", "lines.0"},
		{"xml:/a[", "cannot be used"},
		{"join", "in parentheses"},
		{"join()", "a kind is missing at byte 5"},
		{"key ", `" " is left over`},
		{"join(key)", "needs two or more"},
		{"join(key,topic", "comma or a closing parenthesis is missing"},
		{"join(key,topic))", `")" is left over`},
		{"join(key,header:)", "part 2: header: the header's name is empty"},
		{"join(key,xml:string(/a))", "must be quoted"},
		{strings.Repeat("join(", 9) + "key", "more than 8 deep"},
	} {
		_, err := ParseSource(c.text)
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%q: error %v, want one that says %q", c.text, err, c.want)
			continue
		}
		if c.text != "" && !strings.Contains(err.Error(), "source \""+c.text[:1]) {
			t.Errorf("%q: error %v does not name the text", c.text, err)
		}
	}
}

// anySource draws a source of any kind that a text can name.
func anySource() *rapid.Generator[Source] { return anySourceTo(2) }

func anySourceTo(depth int) *rapid.Generator[Source] {
	text := rapid.OneOf(rapid.StringN(1, 12, -1), rapid.StringMatching(`[a-z."(),:\\ é$]{1,8}`), rapid.Map(rapid.SliceOfN(rapid.Byte(), 1, 6), func(b []byte) string { return string(b) }))
	names := rapid.StringMatching(`[a-z$@]{1,5}(\.[a-z0-9]{1,5}){0,3}`)
	kinds := []*rapid.Generator[Source]{
		rapid.Map(text, Header),
		rapid.Map(text, Const),
		rapid.Map(names, JSON),
		rapid.Map(rapid.SampledFrom([]string{"/a", "//a/@b", "string(//a)", "concat(/a,',',/b)", `/a[@b="(c)"]`}), XML),
		rapid.SampledFrom([]Source{RecordKey(), Topic(), CloudEvents(), StandardWebhooks(), Envelope(), JSON("$"), JSON("$.$")}),
	}
	if depth > 0 {
		kinds = append(kinds, rapid.Custom(func(t *rapid.T) Source {
			return Join(rapid.SliceOfN(anySourceTo(depth-1), 2, 4).Draw(t, "parts")...)
		}))
	}
	return rapid.OneOf(kinds...)
}

func TestEverySourceReadsAsItIsWritten(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		source := anySource().Draw(t, "source")
		again, err := ParseSource(source.String())
		if err != nil {
			t.Fatalf("%s: %v", source, err)
		}
		if again.String() != source.String() {
			t.Fatalf("%s is read as %s", source, again)
		}
		record := idRecord([]byte(`{"a":"1","b":{"c":2}}`), "a", "x", "b", "y", "ce_id", "1", "ce_source", "s")
		record.Key = []byte("k")
		wantValue, wantFound, wantErr := source.Find(record)
		value, found, err := again.Find(record)
		if value != wantValue || found != wantFound || (err == nil) != (wantErr == nil) {
			t.Fatalf("%s finds %q (%v, %v), and read again %q (%v, %v)", source, wantValue, wantFound, wantErr, value, found, err)
		}
	})
}

func TestTwoSourcesNeverShareAText(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		a := rapid.SliceOfN(rapid.StringMatching(`[a,"():]{1,4}`), 2, 3).Draw(t, "a")
		b := rapid.SliceOfN(rapid.StringMatching(`[a,"():]{1,4}`), 2, 3).Draw(t, "b")
		same := strings.Join(a, "\x00") == strings.Join(b, "\x00")
		if got := joinOfHeaders(a).String() == joinOfHeaders(b).String(); got != same {
			t.Fatalf("%s and %s", joinOfHeaders(a), joinOfHeaders(b))
		}
	})
}

func joinOfHeaders(names []string) Source {
	parts := make([]Source, len(names))
	for i, name := range names {
		parts[i] = Header(name)
	}
	return Join(parts...)
}

// foreignSource is a source of another package, whose text is out of this package's hands.
type foreignSource string

func (s foreignSource) String() string                       { return string(s) }
func (foreignSource) Find(*kgo.Record) (string, bool, error) { return "f", true, nil }

func TestAForeignSourceCannotPassForAnother(t *testing.T) {
	t.Parallel()
	forged := Rules{ID: []Source{foreignSource("header:a,header:b")}}
	if genuine := (Rules{ID: []Source{Header("a"), Header("b")}}); forged.String() == genuine.String() {
		t.Fatalf("both are %s", genuine)
	}
	if forged := (Rules{ID: []Source{foreignSource("header:a")}}); forged.String() == (Rules{ID: []Source{Header("a")}}).String() {
		t.Fatal("a foreign source has the text of Header")
	}
	if err := (Rules{ID: []Source{foreignSource("")}}).Validate(); err == nil {
		t.Fatal("a source without a text is valid")
	}
}

func FuzzParseSource(f *testing.F) {
	for _, seed := range []string{
		"header:x", `header:"a,b"`, "json:$.a.b", "json:$", `xml:"string(//a)"`, "key", "join(key,topic)", "join(header:a,join(json:b,const:c))",
		"cloudevents", "standard-webhooks", "envelope", "const:x", "func:x", "join(", `"`, "header:\x00", "json:a\\", "xml:/a[", "join(key,key))",
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		source, err := ParseSource(text)
		if err != nil {
			if source != nil {
				t.Fatalf("%q: a source beside the error", text)
			}
			return
		}
		again, err := ParseSource(source.String())
		if err != nil {
			t.Fatalf("%q is shown as %q, which cannot be read: %v", text, source, err)
		}
		if again.String() != source.String() {
			t.Fatalf("%q is shown as %q, which reads as %q", text, source, again)
		}
	})
}
