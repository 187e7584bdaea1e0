"""Prompts of a gate for services that name none of their own: one line each, of many kinds and lengths."""

from typing import Final

PROMPTS: Final = (
    "List the planets of the solar system in order of their distance from the sun.",
    "Translate into French: The library opens at nine, but the reading room is closed on Mondays.",
    "Write a Python function that returns the n-th Fibonacci number without recursion.",
    "A train leaves at 14:05 and arrives at 17:50. How long does the journey take?",
    "Summarize in one sentence why leaves change their colour in autumn.",
    "Continue the story: The lighthouse keeper found a letter between two stones of the harbour wall.",
    "Give the capital of each of these countries: Peru, Kenya, Norway, Vietnam, Portugal.",
    "Explain to a ten-year-old what a prime number is, with three examples.",
    'Return a JSON object with the keys "city", "country" and "population" for Tokyo.',
    "What is wrong with this SQL: SELECT name, COUNT(*) FROM orders WHERE total > 10;",
    "Compare copper and aluminium as conductors in three short points.",
    "Rewrite politely: Send me the report today.",
    "Which weighs more, a litre of water or a litre of olive oil, and why?",
    "Name four instruments of a string quartet and the clef each one reads.",
    "Convert 72 degrees Fahrenheit to Celsius and show the steps.",
    "Write a limerick about a cat that repairs clocks.",
)
