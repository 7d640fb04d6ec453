//! Pure decisions: who may use which tool in which lane, and why.
