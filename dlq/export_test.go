package dlq

// Statements are the texts whose plans the tests assert, by name.
var Statements = map[string]string{"again": againSQL, "resolve": resolveSQL, "hold": holdSQL}

// ProtectPlans is what stands before the statements in a transaction.
const ProtectPlans = protectPlans
