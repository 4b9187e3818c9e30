package cli

import (
	"fmt"

	"github.com/claimq/claimq/internal/keystry"
)

// printTrial writes what keys try found.
func (e *Env) printTrial(r *keystry.Report, asJSON bool) error {
	if asJSON {
		return e.printJSON(r)
	}
	e.printf("rule: %s\n", oneLine(r.Rule))
	for _, line := range readText(r.Ranges) {
		e.printf("read: %s\n", line)
	}
	e.printf("\n")
	if err := e.printTable(kindsTable(r)); err != nil {
		return err
	}
	if len(r.ConflictFields) > 0 {
		e.printf("\n")
		if err := e.printTable(conflictsTable(r.ConflictFields)); err != nil {
			return err
		}
	}
	if len(r.Shared) > 0 {
		e.printf("\n")
		if err := e.printTable(sharedTable(r.Shared)); err != nil {
			return err
		}
	}
	if samples := samplesTable(&r.Samples); len(samples.rows) > 0 {
		e.printf("\n")
		if err := e.printTable(samples); err != nil {
			return err
		}
	}
	for _, warning := range r.Warnings {
		e.printf("\nwarning: %s\n", oneLine(warning))
	}
	e.printf("\nNothing was written.\n")
	return nil
}

// readText says how much of each topic was read.
func readText(ranges []keystry.Range) (lines []string) {
	for i := 0; i < len(ranges); {
		topic, records, partitions := ranges[i].Topic, 0, 0
		for ; i < len(ranges) && ranges[i].Topic == topic; i++ {
			records += ranges[i].Records
			partitions++
		}
		lines = append(lines, fmt.Sprintf("%s of %s, the newest of %s", counted(records, "record", "records"), oneLine(topic), counted(partitions, "partition", "partitions")))
	}
	return lines
}

func kindsTable(r *keystry.Report) *table {
	t := newTable("MESSAGES", "COUNT", "SHARE", "WOULD BE").alignRight(1, 2)
	row := func(name string, count int, fate string) { t.row(name, count, percent(count, r.Records), fate) }
	row("distinct", r.Distinct, "handled")
	row("repeats", r.Repeats, "dropped as duplicates")
	row("conflicts", r.Conflicts, "dead: the id with another content")
	row("without an id", r.Missing, "dead: missing id")
	row("unreadable", r.Undecodable, "dead: undecodable")
	t.row("all", r.Records)
	return t
}

func conflictsTable(fields []keystry.FieldCount) *table {
	const shown = 10
	t := newTable("CONFLICTS DIFFER IN", "COUNT").alignRight(1)
	for _, f := range fields[:min(len(fields), shown)] {
		t.row(f.Path, f.Count)
	}
	if len(fields) > shown {
		t.row(fmt.Sprintf("… and %d more", len(fields)-shown))
	}
	return t
}

func sharedTable(shared []keystry.Shared) *table {
	t := newTable("ID THAT LOOKS SHARED", "MESSAGES", "PAYLOADS", "FROM", "TO").alignRight(1, 2)
	for _, s := range shared {
		t.row(s.ID, s.Records, s.Payloads, timeText(s.From), timeText(s.To))
	}
	return t
}

func samplesTable(s *keystry.Samples) *table {
	t := newTable("SAMPLE", "AT", "ID", "FIRST COPY", "DETAIL")
	for _, kind := range []struct {
		name    string
		samples []keystry.Sample
	}{{"repeat", s.Repeats}, {"conflict", s.Conflicts}, {"without an id", s.Missing}, {"unreadable", s.Undecodable}} {
		for _, sample := range kind.samples {
			first, detail := "", sample.Reason
			if sample.First != nil {
				first = placeText(*sample.First)
			}
			if kind.name == "conflict" {
				detail = fieldsText(sample.Fields)
			}
			t.row(kind.name, placeText(sample.Place), sample.ID, first, detail)
		}
	}
	return t
}
