package dedup

import (
	"fmt"
	"strings"
	"sync"
	"testing"
)

func TestXMLSource(t *testing.T) {
	t.Parallel()
	const order = `<?xml version="1.0"?><order no="7"><id> k-1 </id><line sku="a"/><line sku="b"/></order>`
	const soap = `<s:Envelope xmlns:s="http://schemas.xmlsoap.org/soap/envelope/"><s:Body><p:Id xmlns:p="urn:x">k</p:Id></s:Body></s:Envelope>`
	runSourceCases(t, []sourceCase{
		{name: "element, white space kept", source: XML("/order/id"), record: jsonRecord(order), want: " k-1 "},
		{name: "white space taken off", source: XML("normalize-space(/order/id)"), record: jsonRecord(order), want: "k-1"},
		{name: "attribute", source: XML("/order/@no"), record: jsonRecord(order), want: "7"},
		{name: "function", source: XML("concat(/order/@no,'-',//line[2]/@sku)"), record: jsonRecord(order), want: "7-b"},
		{name: "any prefix", source: XML("//*[local-name()='Id']"), record: jsonRecord(soap), want: "k"},
		{name: "the document's prefix", source: XML("//p:Id"), record: jsonRecord(soap), want: "k"},
		{name: "absent", source: XML("/order/nothing"), record: jsonRecord(order), missing: true},
		{name: "absent within string()", source: XML("string(/order/nothing)"), record: jsonRecord(order)},
		{name: "empty element", source: XML("/a"), record: jsonRecord(`<a/>`)},
		{name: "CDATA and entities of XML", source: XML("/a"), record: jsonRecord(`<a>x&amp;<![CDATA[<y>]]>&#65;</a>`), want: "x&<y>A"},
		{name: "several nodes", source: XML("//line/@sku"), record: jsonRecord(order), undecodable: "several nodes"},
		{name: "one of several", source: XML("(//line/@sku)[1]"), record: jsonRecord(order), want: "a"},
		{name: "number", source: XML("number(/order/@no)"), record: jsonRecord(order), undecodable: "float64"},
		{name: "boolean", source: XML("/order/@no = '7'"), record: jsonRecord(order), undecodable: "bool"},
		{name: "null value", source: XML("/a"), record: idRecord(nil), missing: true},
		{name: "empty value", source: XML("/a"), record: idRecord([]byte{}), undecodable: "not well-formed"},
		{name: "JSON", source: XML("/a"), record: jsonRecord(`{"a":1}`), undecodable: "not well-formed"},
		{name: "cut off", source: XML("/a"), record: jsonRecord(`<a>k`), undecodable: "not well-formed"},
		{name: "not UTF-8", source: XML("/a"), record: jsonRecord("<a>\xc3\x28</a>"), undecodable: "not well-formed"},
		{name: "another encoding", source: XML("/a"), record: jsonRecord("<?xml version='1.0' encoding='ISO-8859-1'?><a>\xe9</a>"), want: "é"},
		{
			name: "entity from outside", source: XML("/a"),
			record:      jsonRecord(`<!DOCTYPE a [<!ENTITY x SYSTEM "file:///etc/passwd">]><a>&x;</a>`),
			undecodable: "not well-formed",
		},
		{
			name: "entity that grows", source: XML("/a"),
			record:      jsonRecord(`<!DOCTYPE a [<!ENTITY x "xx"><!ENTITY y "&x;&x;">]><a>&y;</a>`),
			undecodable: "not well-formed",
		},
		{name: "nested as deep as is allowed", source: XML("//id"), record: jsonRecord(nestedXML(maxDepth - 1)), want: "k"},
		{name: "nested deeper", source: XML("//id"), record: jsonRecord(nestedXML(maxDepth)), undecodable: "nested more than 1000"},
		{name: "many elements side by side", source: XML("//id"), record: jsonRecord("<a><id>k</id>" + strings.Repeat("<b/>", 2*maxDepth) + "</a>"), want: "k"},
	})
}

func nestedXML(depth int) string {
	return strings.Repeat("<a>", depth) + "<id>k</id>" + strings.Repeat("</a>", depth)
}

func TestXPathsThatCannotWorkAreRefused(t *testing.T) {
	t.Parallel()
	for _, path := range []string{"", "//", "/a[", "foo(", "'open", "unknown-function(/a)"} {
		if err := XML(path).(*xmlSource).check(); err == nil {
			t.Errorf("%q is taken for an XPath", path)
		}
		if _, found, err := XML(path).Find(jsonRecord("<a/>")); err == nil || found {
			t.Errorf("%q finds something without a check: %v", path, err)
		}
	}
}

// The library keeps state in an expression while it evaluates it: an answer must depend neither on what was read before, nor on what is read meanwhile.
func TestXMLSourceHasNoMemoryAndIsSafeForConcurrentUse(t *testing.T) {
	t.Parallel()
	for _, path := range []string{"/a/id", "string(/a/id)", "concat(/a/id,'')", "/a/id[../x]", "(//id)[1]", "normalize-space(//id[position()=1])"} {
		source := XML(path)
		var workers sync.WaitGroup
		for worker := range 4 {
			workers.Go(func() {
				for i := range 50 {
					want := fmt.Sprintf("%d-%d", worker, i)
					value, found, err := source.Find(jsonRecord("<a><x/><id>" + want + "</id></a>"))
					if err != nil || !found || value != want {
						t.Errorf("%s: found %q (%v, %v), want %q", path, value, found, err, want)
						return
					}
				}
			})
		}
		workers.Wait()
	}
}
