"""Answers that follow a grammar: a grammar is compiled once, and each step masks the tokens that it rules out.

compiler = GrammarCompiler(Vocabulary(tokenizer, vocab_size=..., eos_token_ids=...))
grammar = await compiler.compile(spec, salt=tenant)      # protocol.guided; raises BadGrammar, a 400
matcher = grammar.start()                                # one for each answer
"""

from worker.guided.compiler import GrammarCompiler
from worker.guided.errors import BadGrammar
from worker.guided.grammar import Grammar, Matcher
from worker.guided.vocabulary import Vocabulary

__all__ = ["BadGrammar", "Grammar", "GrammarCompiler", "Matcher", "Vocabulary"]
