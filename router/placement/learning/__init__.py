"""What things cost, learned online from what workers report. Pure; one owner changes it in place."""
