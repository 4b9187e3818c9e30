package rowrecord

import (
	"encoding/binary"

	"github.com/google/uuid"
)

// sourceSpace is the namespace of the ids that are made from a source.
var sourceSpace = uuid.MustParse("6f1d1c1e-9a55-5d0c-8f3e-3a1f52a0c7d4")

// SourceID is the id of what becomes of a record in one queue, a delayed item or
// a dead letter: the same however often the record is read and its failure
// stored, so that a batch which is run again after an unknown COMMIT writes the
// same rows and publishes the same effects. queue and topic are the numbers of
// the database's own tables.
func SourceID(queue, topic, partition int32, offset int64) uuid.UUID {
	// The bits are what counts, whatever they mean.
	var name [20]byte
	binary.BigEndian.PutUint32(name[0:], uint32(queue))     //nolint:gosec // bits
	binary.BigEndian.PutUint32(name[4:], uint32(topic))     //nolint:gosec // bits
	binary.BigEndian.PutUint32(name[8:], uint32(partition)) //nolint:gosec // bits
	binary.BigEndian.PutUint64(name[12:], uint64(offset))   //nolint:gosec // bits
	return uuid.NewSHA1(sourceSpace, name[:])
}
