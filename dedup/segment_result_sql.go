package dedup

// resultSlots is the number of slots in the ring of results.
const resultSlots = 3

// Results are forgotten by the same means as claims. Their slot belongs to the
// phase, and whoever stores a result has claimed in the same transaction and so
// holds the lock of that phase or of the one before it. When the claimers of the
// phases before have gone, nobody writes the slot before any more.

// Keeps: what a closed slot holds, so that when it may be emptied is no scan.
const sqlRollResultsClocks = `
update claimq.result_slots s
   set closed = clock_timestamp(), newest_expiry = r.newest, longest = r.longest
  from (select max(expires_at) as newest, max(expires_at - created_at) as longest from claimq.results_SLOT) r
 where s.slot = SLOT`

// Keeps: the age of the slot that is written now.
const sqlRollResultsOpened = `
update claimq.result_slots set opened = clock_timestamp(), closed = null, newest_expiry = null where slot = $1`

// Whoever reads results waits behind this lock: at most the 50 ms that it waits
// itself, and then the moment of the TRUNCATE.
const sqlRollResultsLock = `lock table only claimq.results_SLOT in access exclusive mode`

// Keeps: a result is there until it has expired. The check under that lock.
const sqlRollResultsUnused = `
select s.closed is not null and coalesce(s.newest_expiry <= now(), true)
       and s.slot <> (select p.result_slot from claimq.claim_phases p order by p.phase desc limit 1)
  from claimq.result_slots s where s.slot = $1`

const sqlRollResultsTruncate = `truncate only claimq.results_SLOT`

// longest stays: how long results lived is how soon the next slot is taken.
const sqlRollResultsReset = `
update claimq.result_slots set opened = null, newest_expiry = null where slot = $1`
