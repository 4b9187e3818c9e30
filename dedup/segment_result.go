package dedup

import (
	"context"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"
)

// stepResults makes the first step of the results' ring that is due and tells
// whether there was one. All claimers are of the phase in force, so a slot that is
// not its slot is written no more.
func (r *Roller) stepResults(ctx context.Context, tx pgx.Tx, s *rollState, result *RollResult) (bool, error) {
	for _, slot := range s.resultsFilled {
		switch {
		case slot == s.resultSlot:
		case !slices.Contains(s.resultsClosed, slot):
			if _, err := tx.Exec(ctx, r.sql.resultsClocks[slot]); err != nil {
				return false, fmt.Errorf("close slot %d of the results: %w", slot, err)
			}
			return true, nil
		case slices.Contains(s.resultsExpired, slot):
			return true, r.forgetResults(ctx, tx, slot, result)
		}
	}
	next := (s.resultSlot + 1) % resultSlots
	if !s.resultsDue || !slices.Contains(s.resultsFilled, s.resultSlot) || slices.Contains(s.resultsFilled, next) {
		return false, nil
	}
	if err := r.put(ctx, tx, s, s.phase.inserts, s.phase.lookups, next, result); err != nil {
		return false, err
	}
	if _, err := tx.Exec(ctx, r.sql.resultsOpened, next); err != nil {
		return false, fmt.Errorf("open slot %d of the results: %w", next, err)
	}
	return true, nil
}

// forgetResults empties a slot of which every result has expired.
func (r *Roller) forgetResults(ctx context.Context, tx pgx.Tx, slot int16, result *RollResult) error {
	if _, err := tx.Exec(ctx, r.sql.resultsLock[slot]); err != nil {
		return fmt.Errorf("lock slot %d of the results to empty it: %w", slot, err)
	}
	var unused bool
	if err := tx.QueryRow(ctx, r.sql.resultsUnused, slot).Scan(&unused); err != nil {
		return fmt.Errorf("look whether slot %d of the results has expired: %w", slot, err)
	}
	if !unused {
		return fmt.Errorf("slot %d of the results is in use again: some other program has written claim_phases; nothing was emptied", slot)
	}
	for _, statement := range []string{r.sql.resultsTruncate[slot], r.sql.resultsReset} {
		var args []any
		if statement == r.sql.resultsReset {
			args = []any{slot}
		}
		if _, err := tx.Exec(ctx, statement, args...); err != nil {
			return fmt.Errorf("empty slot %d of the results: %w", slot, err)
		}
	}
	result.ResultsForgotten++
	return nil
}
