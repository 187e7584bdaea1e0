"""`tandem bench`: replay a workload against an OpenAI URL and report what a user would feel."""
