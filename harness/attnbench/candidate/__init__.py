"""One implementation on one case: built, prepared, called; its inputs rewritten, its gradients taken."""
