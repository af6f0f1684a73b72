"""Facts: what is known of a finding, a refusal, an untimed call or the end of a run, before it becomes text.

``words`` makes the text, at the very end. A field of a fact that is free text comes from an exception, from a plug-in,
or from a run of a schema before 8; no code looks for words in it.
"""

from attnbench.records.outcome_facts import OutcomeFact
from attnbench.records.value_facts import ValueFact

__all__ = ["Fact", "Reason"]

Fact = ValueFact | OutcomeFact
# What is known of a refusal or of an untimed call: a fact, or the text that a run of a schema before 8 stored.
Reason = Fact | str
