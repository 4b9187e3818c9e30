package consumer

import (
	"testing"
	"time"

	"pgregory.net/rapid"
)

// C01: work ends in any order; the position passes nothing that is not done.
func TestTrackerPassesOnlyWhatIsDone(t *testing.T) {
	t.Parallel()
	track := tracker{position: 0}
	for _, offset := range []int64{0, 1, 3, 7} { // holes: compaction, control records
		track.add(offset, time.Time{})
	}
	for _, step := range []struct {
		finish, position int64
		moved            bool
	}{{7, 0, false}, {3, 0, false}, {1, 0, false}, {0, 8, true}} {
		if moved := track.finish(step.finish); moved != step.moved || track.position != step.position {
			t.Errorf("after %d: position %d, moved %v; want %d, %v", step.finish, track.position, moved, step.position, step.moved)
		}
	}
	if track.entries != nil {
		t.Error("it keeps entries that are passed")
	}
	if track.finish(3) {
		t.Error("an offset that is passed moves the position again")
	}
}

// The tracker against a list of offsets, each with its state.
func TestTrackerAgainstAModel(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		type work struct {
			offset int64
			holder *batch
			done   bool
		}
		start := rapid.Int64Range(0, 1000).Draw(t, "start")
		track := tracker{position: start}
		next := start
		var model []*work
		batches := []*batch{{}, {}, {}}
		position := func(b *batch) int64 {
			at := start
			for _, w := range model {
				if !w.done && (b == nil || w.holder != b) {
					return at
				}
				at = w.offset + 1
			}
			return at
		}
		pick := func(t *rapid.T) *work {
			if len(model) == 0 {
				t.Skip("nothing yet")
			}
			return model[rapid.IntRange(0, len(model)-1).Draw(t, "which")]
		}
		t.Repeat(map[string]func(*rapid.T){
			"add": func(t *rapid.T) {
				next += rapid.Int64Range(0, 3).Draw(t, "hole")
				track.add(next, time.Time{})
				model = append(model, &work{offset: next})
				next++
			},
			"hold": func(t *rapid.T) {
				w := pick(t)
				if w.done {
					t.Skip("done")
				}
				w.holder = batches[rapid.IntRange(0, 2).Draw(t, "batch")]
				track.hold(w.offset, w.holder)
			},
			"put back": func(t *rapid.T) {
				w := pick(t)
				if w.done {
					t.Skip("done")
				}
				w.holder = nil
				track.hold(w.offset, nil)
			},
			"finish": func(t *rapid.T) {
				w := pick(t)
				before := track.position
				moved := track.finish(w.offset)
				w.done, w.holder = true, nil
				if moved != (track.position > before) {
					t.Errorf("moved %v: from %d to %d", moved, before, track.position)
				}
			},
			"": func(t *rapid.T) {
				if track.position != position(nil) {
					t.Errorf("position %d, want %d", track.position, position(nil))
				}
				for i, b := range batches {
					if got, want := track.with(b), position(b); got != want {
						t.Errorf("with batch %d: %d, want %d", i, got, want)
					}
				}
				if got, want := track.with(nil), position(nil); got != want {
					t.Errorf("with no batch: %d, want %d", got, want)
				}
				oldest := int64(-1)
				for _, w := range model {
					if !w.done {
						oldest = w.offset
						break
					}
				}
				if got, _, ok := track.oldest(); ok != (oldest >= 0) || ok && got != oldest {
					t.Errorf("oldest %d %v, want %d", got, ok, oldest)
				}
			},
		})
	})
}
