"""Edits of a running platform's file, rolled out by the control plane's own reconcile with processes for pods."""
