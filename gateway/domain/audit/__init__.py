"""The audit log, who changed what: a row for every change through the admin plane, in the same transaction."""
