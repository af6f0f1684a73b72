"""Elementary attention mechanisms, a plug-in: operators, their checks and mutants, implementations and studies."""
