"""`tandem verify`: whether two models, engines, data types or revisions give the same answers."""
