package dlq

import (
	"encoding/binary"
	"regexp"
	"strings"

	"github.com/google/uuid"

	"github.com/claimq/claimq/internal/pgtext"
)

// CauseVersion is the version of the masking. Letters keep the one that their
// cause was made with, so that a better mask does not split what was one cause
// without saying so.
const CauseVersion int16 = 1

// maxMasked bounds what of a message goes into its cause, in bytes.
const maxMasked = 1 << 10

// causeSpace is the namespace of causes.
var causeSpace = uuid.MustParse("b2d9a6f4-5c0b-5b39-9d3c-0c1f7f0f6e21")

// Cause groups letters that died of one thing: the id over queue, reason, error
// class, the message with everything masked that differs from one message to the
// next, and the version of the masking.
//
//	<uuid>   a UUID
//	<hex>    0x…, \x…, and runs of at least eight hex digits with a digit in it
//	<id>     a word that mixes letters and digits as random ids do
//	<quoted> a quoted text with a digit or an @ in it; other quoted texts, such as
//	         names of columns and constraints, tell causes apart and stay
//	#        a number, also inside a word
//
// White space counts as one blank. Only the first KiB of the message counts.
func Cause(queue, reason, class, message string) (id uuid.UUID, masked string, version int16) {
	masked = mask(message)
	var name []byte
	name = binary.BigEndian.AppendUint16(name, uint16(CauseVersion))
	for _, part := range []string{queue, reason, class, masked} {
		name = binary.BigEndian.AppendUint32(name, uint32(len(part))) //nolint:gosec // parts are bounded when they are stored
		name = append(name, part...)
	}
	return uuid.NewSHA1(causeSpace, name), masked, CauseVersion
}

var (
	blanks  = regexp.MustCompile(`\s+`)
	uuids   = regexp.MustCompile(`(?i)\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b`)
	quoted  = regexp.MustCompile(`"[^"]*[0-9@][^"]*"|'[^']*[0-9@][^']*'|` + "`[^`]*[0-9@][^`]*`")
	hexes   = regexp.MustCompile(`(?i)(?:\b0x|\\x)[0-9a-f]+`)
	words   = regexp.MustCompile(`[0-9A-Za-z]+`)
	numbers = regexp.MustCompile(`[-+]?[0-9]+(?:[.,][0-9]+)*(?:[eE][-+]?[0-9]+)?`)
)

// mask replaces in an order that matters: what contains digits as a whole comes
// before the digits.
func mask(message string) string {
	text := pgtext.Storable(message, maxMasked)
	text = strings.TrimSpace(blanks.ReplaceAllLiteralString(text, " "))
	text = uuids.ReplaceAllLiteralString(text, "<uuid>")
	text = quoted.ReplaceAllStringFunc(text, func(q string) string { return q[:1] + "<quoted>" + q[len(q)-1:] })
	text = hexes.ReplaceAllLiteralString(text, "<hex>")
	text = words.ReplaceAllStringFunc(text, maskWord)
	return numbers.ReplaceAllLiteralString(text, "#")
}

// maskWord masks a word that is an id as a whole.
func maskWord(word string) string {
	var digits, nonHex, changes int
	for i, c := range []byte(word) {
		digit := c >= '0' && c <= '9'
		if digit {
			digits++
		} else if c |= 0x20; c > 'f' {
			nonHex++
		}
		if i > 0 && digit != (word[i-1] >= '0' && word[i-1] <= '9') {
			changes++
		}
	}
	switch {
	case digits == 0 || digits == len(word):
		return word
	case nonHex == 0 && len(word) >= 8:
		return "<hex>"
	case changes >= 3 && len(word) >= 8:
		return "<id>"
	}
	return word
}
