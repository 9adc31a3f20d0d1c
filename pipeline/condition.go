package pipeline

// condition is a compiled CEL expression.
type condition struct{}
