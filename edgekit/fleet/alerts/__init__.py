"""What is wrong in the fleet now, and who has had word of it."""
