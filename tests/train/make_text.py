#!/usr/bin/env python3
"""Writes tests/train/data.txt: plain sentences about a harbour, put together from lists of words by a
fixed rule, so that a small model finds something to learn and nobody's text is copied."""
import os

SIZE = 30011  # prime: sequences do not come round again soon

PEOPLE = ["the pilot", "a fisherman", "the harbour master", "an old sailor", "the cook", "a carpenter",
          "the keeper of the lighthouse", "a boy with a lantern", "the captain", "a woman from the island"]
VERBS = ["carried", "mended", "counted", "painted", "lifted", "sold", "found", "lost", "waited for", "watched"]
THINGS = ["the nets", "a barrel of salt", "the small boat", "seven ropes", "a broken oar", "the anchor",
          "two crates of apples", "the morning mail", "a map of the bay", "the green lamp"]
PLACES = ["on the quay", "near the market", "behind the church", "at the end of the pier", "under the bridge",
          "by the slipway", "in the boathouse", "across the bay", "beside the well", "along the sea wall"]
TIMES = ["before sunrise", "at noon", "when the tide turned", "in the first week of March", "late in the evening",
         "after the storm", "on market day", "while it rained", "as the bells rang", "long before winter"]
ENDS = ["and nobody asked why", "but the wind had changed", "and went home", "for a silver coin",
        "as he had promised", "and then it was quiet", "so the work was done", "and sang a little",
        "without a word", "until the light was gone"]


def numbers():
    """A linear congruential sequence: the same text on every machine and Python."""
    state = 2024
    while True:
        state = (state * 6364136223846793005 + 1442695040888963407) % 2**64
        yield state >> 33


def sentence(pick):
    choose = lambda words: words[next(pick) % len(words)]
    form = next(pick) % 4
    if form == 0:
        text = f"{choose(TIMES)} {choose(PEOPLE)} {choose(VERBS)} {choose(THINGS)} {choose(PLACES)}"
    elif form == 1:
        text = f"{choose(PEOPLE)} {choose(VERBS)} {choose(THINGS)}, {choose(ENDS)}"
    elif form == 2:
        text = f"{choose(PLACES)} {choose(PEOPLE)} {choose(VERBS)} {choose(THINGS)} {choose(TIMES)}, {choose(ENDS)}"
    else:
        text = f"{next(pick) % 90 + 10} steps from there {choose(PEOPLE)} {choose(VERBS)} {choose(THINGS)}"
    return text[0].upper() + text[1:] + "."


def main():
    pick = numbers()
    text = ""
    while len(text) < SIZE:
        text += sentence(pick) + ("\n\n" if next(pick) % 6 == 0 else "\n" if next(pick) % 3 == 0 else " ")
    with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "data.txt"), "w", encoding="ascii",
              newline="\n") as file:
        file.write(text[: SIZE - 1] + "\n")


main()
