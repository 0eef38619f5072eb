"""An atlas of heads: what each attends to and copies, measured with controls."""
