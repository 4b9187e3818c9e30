package dedup

import (
	"github.com/google/uuid"
	"github.com/twmb/franz-go/pkg/kgo"
)

// Effect finds the id of a record that claimq's outbox has published: the header id, a UUID that is the same on every copy of the record. It is all the
// configuration that a consumer of effects needs to drop their repeats.
//
// A header id that holds anything but one UUID in its usual form of 36 characters is not found, so that records of other producers, whose header of that name
// may mean an entity and not a message, are rejected as records without an id and never dropped as repeats of one another. Upper and lower case of the
// digits are one id, since an effect's is always written in lower case.
func Effect() Source { return effectSource{} }

type effectSource struct{}

func (effectSource) Find(r *kgo.Record) (string, bool, error) {
	value, found := lastHeader(r, "id")
	if !found || len(value) != 36 {
		return "", false, nil
	}
	id, err := uuid.ParseBytes(value)
	if err != nil || id == uuid.Nil {
		return "", false, nil //nolint:nilerr // it is not an effect's id, which is no error
	}
	return id.String(), true, nil
}

func (effectSource) String() string { return kindEffect }
func (effectSource) check() error   { return nil }
func (effectSource) constant() bool { return false }
