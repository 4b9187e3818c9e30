package dedup

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/claimq/claimq/internal/nearest"
	"github.com/claimq/claimq/internal/pgtext"
)

// The kinds of sources as they are written in configuration.
const (
	kindHeader           = "header"
	kindJSON             = "json"
	kindXML              = "xml"
	kindKey              = "key"
	kindEffect           = "effect"
	kindJoin             = "join"
	kindFunc             = "func"
	kindCloudEvents      = "cloudevents"
	kindStandardWebhooks = "standard-webhooks"
	kindTopic            = "topic"
	kindConst            = "const"
	kindEnvelope         = "envelope"
)

// sourceKinds are the kinds that ParseSource reads, in the order in which an error lists them.
var sourceKinds = []string{
	kindHeader, kindJSON, kindXML, kindKey, kindEffect, kindJoin, kindCloudEvents, kindStandardWebhooks, kindEnvelope, kindTopic, kindConst,
}

// maxJoinDepth bounds joins within joins, so that a hostile text cannot exhaust the stack.
const maxJoinDepth = 8

// ParseSource reads the text of a source, as configuration has it and as String prints it:
//
//	header:NAME  json:PATH  xml:XPATH  key  effect  cloudevents  standard-webhooks  envelope  topic  const:VALUE  join(SOURCE,SOURCE,…)
//
// What follows the colon is taken as it is, to the end of the text, or within a join to the next comma or closing parenthesis. What begins or ends with white
// space, or holds one of `"(),` within a join, is written as a quoted Go string: header:"a,b". The result's String is the shortest such text, and reads as
// the same source. A source made with Func has no text that ParseSource could read.
//
// The source is checked: a path or an XPath that cannot be used is an error here. Errors quote the text, and name the nearest kind when the kind is unknown.
func ParseSource(text string) (Source, error) {
	p := sourceParser{text: text}
	source, err := p.source(0)
	if err == nil && p.pos < len(text) {
		err = fmt.Errorf("%q is left over", pgtext.Storable(text[p.pos:], 80))
	}
	if err == nil {
		err = checkSource(source)
	}
	if err != nil {
		return nil, fmt.Errorf("source %q: %w", pgtext.Storable(text, 200), err)
	}
	return source, nil
}

type sourceParser struct {
	text string
	pos  int
}

// source reads one source at pos. depth is the number of joins around it.
func (p *sourceParser) source(depth int) (Source, error) {
	rest := p.text[p.pos:]
	kind := rest
	if end := strings.IndexAny(rest, ":(), "); end >= 0 {
		kind = rest[:end]
	}
	if kind == "" && rest != "" {
		return nil, fmt.Errorf("a kind is missing at byte %d; the kinds are %s", p.pos, strings.Join(sourceKinds, ", "))
	}
	p.pos += len(kind)
	switch kind {
	case kindKey:
		return RecordKey(), p.bare(kind)
	case kindEffect:
		return Effect(), p.bare(kind)
	case kindCloudEvents:
		return CloudEvents(), p.bare(kind)
	case kindStandardWebhooks:
		return StandardWebhooks(), p.bare(kind)
	case kindEnvelope:
		return Envelope(), p.bare(kind)
	case kindTopic:
		return Topic(), p.bare(kind)
	case kindJoin:
		return p.join(depth)
	case kindHeader:
		return withArgument(p, kind, depth, Header)
	case kindJSON:
		return withArgument(p, kind, depth, JSON)
	case kindXML:
		return withArgument(p, kind, depth, XML)
	case kindConst:
		return withArgument(p, kind, depth, Const)
	case kindFunc:
		return nil, fmt.Errorf("%s is made in Go, with dedup.Func, and cannot be named in a text", kindFunc)
	}
	return nil, fmt.Errorf("unknown kind %q; did you mean %q? the kinds are %s",
		pgtext.Storable(kind, 80), nearest.Of(strings.ToLower(strings.TrimSpace(kind)), sourceKinds), strings.Join(sourceKinds, ", "))
}

// bare makes sure that a kind without an argument was given none.
func (p *sourceParser) bare(kind string) error {
	if p.pos < len(p.text) && (p.text[p.pos] == ':' || p.text[p.pos] == '(') {
		return fmt.Errorf("%s takes nothing after it", kind)
	}
	return nil
}

func (p *sourceParser) join(depth int) (Source, error) {
	if depth == maxJoinDepth {
		return nil, fmt.Errorf("join within join, more than %d deep", maxJoinDepth)
	}
	if !p.take('(') {
		return nil, fmt.Errorf("%s needs its parts in parentheses: join(header:a,json:b)", kindJoin)
	}
	var parts []Source
	for {
		p.skipSpace()
		part, err := p.source(depth + 1)
		if err != nil {
			return nil, err
		}
		parts = append(parts, part)
		p.skipSpace()
		if p.take(')') {
			return Join(parts...), nil
		}
		if !p.take(',') {
			return nil, fmt.Errorf("join: a comma or a closing parenthesis is missing at byte %d", p.pos)
		}
	}
}

func (p *sourceParser) take(c byte) bool {
	if p.pos < len(p.text) && p.text[p.pos] == c {
		p.pos++
		return true
	}
	return false
}

func (p *sourceParser) skipSpace() {
	for p.pos < len(p.text) && p.text[p.pos] == ' ' {
		p.pos++
	}
}

// withArgument reads the argument of a kind that needs one, and makes the source of it.
func withArgument(p *sourceParser, kind string, depth int, construct func(string) Source) (Source, error) {
	if !p.take(':') {
		return nil, fmt.Errorf("%s needs a colon and a text after it", kind)
	}
	argument, err := p.argument(depth)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", kind, err)
	}
	return construct(argument), nil
}

func (p *sourceParser) argument(depth int) (string, error) {
	rest := p.text[p.pos:]
	if strings.HasPrefix(rest, `"`) {
		quoted, err := strconv.QuotedPrefix(rest)
		if err != nil {
			return "", errors.New("the quoted text does not end, or has an escape that Go does not know")
		}
		argument, err := strconv.Unquote(quoted)
		if err != nil {
			return "", fmt.Errorf("the quoted text cannot be read: %w", err)
		}
		p.pos += len(quoted)
		return argument, nil
	}
	argument := rest
	if depth > 0 {
		end := strings.IndexAny(rest, `,()"`)
		if end >= 0 && (rest[end] == '(' || rest[end] == '"') {
			return "", fmt.Errorf("within a join, a text that holds %q must be quoted", rest[end])
		}
		if end >= 0 {
			argument = strings.TrimRight(rest[:end], " ")
		}
	}
	if strings.TrimSpace(argument) != argument {
		return "", errors.New("the text begins or ends with white space; quote it if that is meant")
	}
	p.pos += len(argument)
	return argument, nil
}

// sourceText is the text by which a rule names a source. A source of another package is quoted whole, so that its text can never read as another rule's.
func sourceText(s Source) string {
	switch own := s.(type) {
	case nil:
		return "nil"
	case ownSource:
		return own.String()
	default:
		return "custom:" + ruleArgument(s.String())
	}
}

// ruleArgument writes a text so that it ends where it ends: as it is when it is made of plain characters, else as a quoted Go string.
func ruleArgument(text string) string {
	for i := range len(text) {
		if c := text[i]; c <= ' ' || c > '~' || strings.IndexByte(`"(),`, c) >= 0 {
			return strconv.Quote(text)
		}
	}
	if text == "" {
		return `""`
	}
	return text
}
