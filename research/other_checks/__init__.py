"""The study of what the checks that people use catch: inputs, rules, isolated runs, tables."""
