package consumer

import (
	"crypto/sha256"
	"encoding/binary"

	"github.com/google/uuid"
)

// orderDigest names what is kept in order: a key of the queue, or a partition.
func orderDigest(queue, topic string, partition int32, key []byte) uuid.UUID {
	text := make([]byte, 0, 128)
	text = binary.BigEndian.AppendUint32(text, uint32(len(queue))) //nolint:gosec // at most 200
	text = append(text, queue...)
	text = binary.BigEndian.AppendUint32(text, uint32(len(topic))) //nolint:gosec // Kafka allows 249
	text = append(text, topic...)
	text = binary.BigEndian.AppendUint32(text, uint32(partition)) //nolint:gosec // -1 is one value among others
	text = append(text, key...)
	sum := sha256.Sum256(text)
	return uuid.UUID(sum[:16])
}

// strandOf spreads messages over a partition's strands: equal order keys go to the
// same one, messages without an order key anywhere.
func strandOf(t *task, strands int) int {
	if strands == 1 {
		return 0
	}
	if t.orderKey == uuid.Nil {
		return int(uint64(t.record.Offset) / 64 % uint64(strands)) //nolint:gosec // offsets are not negative
	}
	return int(binary.BigEndian.Uint64(t.orderKey[:8]) % uint64(strands)) //nolint:gosec // below strands; a digest is spread evenly
}

// keyMarks are order keys of which something happened to a message that others of
// the key must heed, and the first message's turn: what stands before it in the
// batch is not concerned, however early it was judged.
type keyMarks map[uuid.UUID]int

func (m keyMarks) mark(t *task) {
	if t.orderKey == uuid.Nil {
		return
	}
	if first, marked := m[t.orderKey]; !marked || t.turn < first {
		m[t.orderKey] = t.turn
	}
}

// before reports whether a message of the same order key that stands before t is
// marked.
func (m keyMarks) before(t *task) bool {
	first, marked := m[t.orderKey]
	return marked && t.orderKey != uuid.Nil && first < t.turn
}
