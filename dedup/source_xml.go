package dedup

import (
	"bytes"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"sync"

	"github.com/antchfx/xmlquery"
	"github.com/antchfx/xpath"
	"github.com/twmb/franz-go/pkg/kgo"
	"golang.org/x/net/html/charset"
)

// XML finds what an XPath 1.0 expression leads to in a value that is XML. An expression for nodes (/order/@id, //*[local-name()='id']) finds the text of the
// one node that it leads to; one for a string (string(/order/id), concat(…)) finds that string. Prefixes in the expression are compared with the document's
// own, so local-name() is the safe way to an element whose prefix the producer chooses. White space is significant: normalize-space(/order/id) takes it off.
//
// No node, or a null value, is not found. The record is undecodable when its value is not well-formed XML, is nested more than 1000 levels deep, or when
// the expression leads to several nodes (which of them is the id?), or to a number or a boolean: numbers in XPath are float64, and would make one id of several
// beyond 2^53. Encodings other than UTF-8 are read as the document declares them. Entities that a document declares are not resolved, from outside or
// inside: a reference to one is an error.
//
// The expression is checked by Rules.Validate and by ParseSource.
func XML(path string) Source {
	s := &xmlSource{path: path}
	first, err := compileXPath(path)
	if err != nil {
		s.err = err
		return s
	}
	// The library keeps state in a compiled expression while it evaluates it, so each goroutine takes one of its own.
	s.compiled.New = func() any {
		if compiled, err := compileXPath(path); err == nil {
			return compiled
		}
		return first
	}
	s.compiled.Put(first)
	return s
}

type xmlSource struct {
	path     string
	err      error // what is wrong with path
	compiled sync.Pool
}

func (s *xmlSource) Find(r *kgo.Record) (string, bool, error) {
	if s.err != nil {
		return "", false, undecodable(s, r, s.err)
	}
	if r.Value == nil {
		return "", false, nil
	}
	document, err := parseXML(r.Value)
	if err != nil {
		return "", false, undecodable(s, r, err)
	}
	value, found, err := s.evaluate(document)
	if err != nil {
		return "", false, undecodable(s, r, err)
	}
	return value, found, nil
}

func (s *xmlSource) String() string { return kindXML + ":" + ruleArgument(s.path) }
func (s *xmlSource) check() error   { return s.err }
func (*xmlSource) constant() bool   { return false }

// evaluate returns the text that the expression leads to. The library panics on arguments of the wrong type, which depends on the document; that is an error
// of the record and not of the process.
func (s *xmlSource) evaluate(document *xmlquery.Node) (value string, found bool, err error) {
	compiled := s.compiled.Get().(*xpath.Expr)
	defer func() {
		if p := recover(); p != nil {
			value, found, err = "", false, fmt.Errorf("the expression cannot be evaluated: %v", p)
			return // an expression that panicked half way is not used again
		}
		s.compiled.Put(compiled)
	}()
	switch result := compiled.Evaluate(xmlquery.CreateXPathNavigator(document)).(type) {
	case string:
		return result, true, nil
	case *xpath.NodeIterator:
		if !result.MoveNext() {
			return "", false, nil
		}
		value = result.Current().Value()
		if result.MoveNext() {
			return "", false, errors.New("the expression leads to several nodes; choose one, as in (//id)[1]")
		}
		return value, true, nil
	default:
		return "", false, fmt.Errorf("the expression leads to a %T; an id is a text, write string(…) around the node", result)
	}
}

// compileXPath compiles an expression; the library panics on some that it cannot read.
func compileXPath(path string) (compiled *xpath.Expr, err error) {
	if path == "" {
		return nil, errors.New("xml: the expression is empty")
	}
	defer func() {
		if p := recover(); p != nil {
			compiled, err = nil, fmt.Errorf("xml: the expression %q cannot be used: %v", path, p)
		}
	}()
	compiled, err = xpath.Compile(path)
	if err != nil {
		return nil, fmt.Errorf("xml: the expression %q cannot be used: %w", path, err)
	}
	return compiled, nil
}

func parseXML(value []byte) (document *xmlquery.Node, err error) {
	if err := checkXMLDepth(value); err != nil {
		return nil, err
	}
	document, err = xmlquery.Parse(bytes.NewReader(value))
	if err != nil {
		return nil, fmt.Errorf("the value is not well-formed XML: %w", err)
	}
	return document, nil
}

// checkXMLDepth returns errTooDeep for a document that is nested more than maxDepth levels deep. It reads only documents with enough tags for that.
func checkXMLDepth(value []byte) error {
	if bytes.Count(value, []byte{'<'}) <= maxDepth {
		return nil
	}
	decoder := xml.NewDecoder(bytes.NewReader(value))
	decoder.CharsetReader = charset.NewReaderLabel
	for depth := 0; ; {
		token, err := decoder.RawToken()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("the value is not well-formed XML: %w", err)
		}
		switch token.(type) {
		case xml.StartElement:
			if depth++; depth > maxDepth {
				return errTooDeep
			}
		case xml.EndElement:
			depth--
		}
	}
}
