package dedup

import (
	"crypto/sha256"
	"encoding/binary"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/google/uuid"

	"github.com/claimq/claimq/internal/pgtext"
)

// An Identity is what makes a message the one that it is: an id within a scope (queue, tenant, operation), and the fingerprint of what it asks for.
// Identities are values; the texts that Tenant and Operation point to do not change.
type Identity struct {
	Queue     string
	Tenant    *string // nil: none, which is not the tenant ""
	Operation *string // nil: none
	ID        string  // never empty; any bytes, UTF-8 or not

	Fingerprint        uuid.UUID // compared only between equal versions
	FingerprintVersion int16     // 0: there is no fingerprint

	FromOffset bool // the record had no id, and MissingOffset made this one
}

// Digest returns the identity as the claims table has it: the first 16 bytes of the SHA-256 of queue, tenant, operation and id in this order, each preceded
// by its length in bytes as a big-endian int32, and -1 with nothing after it for one that is nil. So no two identities share a text that is hashed. All 128 bits are the
// digest's: no version bits are set, so it is a uuid in form only. The fingerprint is no part of it.
//
// The SQL function claimq.claim_id(text, text, text, bytea) computes the same, so that a person can look an id up.
func (i Identity) Digest() uuid.UUID {
	var buffer [256]byte // on the stack; longer identities make append allocate
	text := appendCounted(buffer[:0], &i.Queue)
	text = appendCounted(text, i.Tenant)
	text = appendCounted(text, i.Operation)
	text = appendCounted(text, &i.ID)
	digest := sha256.Sum256(text)
	return uuid.UUID(digest[:16])
}

func appendCounted(text []byte, part *string) []byte {
	if part == nil {
		return append(text, 0xff, 0xff, 0xff, 0xff)
	}
	text = binary.BigEndian.AppendUint32(text, uint32(len(*part))) //nolint:gosec // a record has at most 2 GiB
	return append(text, *part...)
}

// appendPart appends a part of a joined id: its length in bytes, a colon, and itself.
func appendPart(joined []byte, part string) []byte {
	joined = strconv.AppendInt(joined, int64(len(part)), 10)
	joined = append(joined, ':')
	return append(joined, part...)
}

const (
	maxShown  = 64 // runes
	shortened = "…"
)

// Shown returns the id as people see it and as a Postgres text column takes it: bytes that are not UTF-8, NUL and other control characters as \x00, and at
// most 64 characters, of which the last is … when the id is longer. It is for reading: two ids may be shown alike, and are told apart by their digests.
func (i Identity) Shown() string {
	if len(i.ID) <= maxShown && plain(i.ID) {
		return i.ID
	}
	// One character more than is shown needs 4 bytes at most, whatever it is made of.
	head := i.ID
	if len(head) > 4*(maxShown+1) {
		head = head[:4*(maxShown+1)]
	}
	var shown strings.Builder
	count, cut := 0, 0 // characters so far, and where those end that leave room for the mark
	for at, r := range head {
		piece := shownRune(head[at:], r)
		if count += utf8.RuneCountInString(piece); count > maxShown {
			return shown.String()[:cut] + shortened
		}
		shown.WriteString(piece)
		if count < maxShown {
			cut = shown.Len()
		}
	}
	return shown.String()
}

func plain(id string) bool {
	for at := range len(id) {
		if id[at] < ' ' || id[at] > '~' {
			return false
		}
	}
	return true
}

// shownRune returns the character r, with which rest begins, as Shown has it.
func shownRune(rest string, r rune) string {
	size := utf8.RuneLen(r)
	switch {
	case r == utf8.RuneError && !strings.HasPrefix(rest, "\uFFFD"):
		return pgtext.Storable(rest[:1], 4)
	case r < 0x80 && unicode.IsControl(r):
		return `\x` + hexByte(rest[0])
	case unicode.IsPrint(r):
		return rest[:size]
	default:
		return strings.Trim(strconv.QuoteRuneToASCII(r), "'")
	}
}

func hexByte(b byte) string {
	const digits = "0123456789abcdef"
	return string([]byte{digits[b>>4], digits[b&15]})
}
