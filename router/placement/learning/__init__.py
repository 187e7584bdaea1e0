"""The cost of work, learned online from what workers report. Pure; one owner changes it in place."""
