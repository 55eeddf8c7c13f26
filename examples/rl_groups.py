"""A trainer's loop (GRPO and its kin) that samples a group of completions for each prompt.

BRIMFUL_REDIS_URL=redis://… python examples/rl_groups.py

The trainer here needs no GPU: it only computes the advantages that a real one would learn from.
"""

import asyncio
from statistics import fmean, pstdev

from brimful import AsyncFleet, Group

STEPS, PROMPTS, SAMPLES = 2, 8, 4


def reward(text: str) -> float:
    """What a verifier or a reward model would say; here: many different words."""
    words = text.split()
    return len(set(words)) / max(1, len(words))


class Trainer:
    def __init__(self) -> None:
        self.batch: list[tuple[str, str, float]] = []

    def add(self, group: Group) -> None:
        """Group-relative advantages: how much better each sample is than the others of its prompt."""
        rewards = [reward(text) for text in group.texts]
        mean, spread = fmean(rewards), pstdev(rewards) or 1.0
        for text, one in zip(group.texts, rewards, strict=True):
            self.batch.append((str(group.prompt), text, (one - mean) / spread))

    def step(self) -> float:
        batch, self.batch = self.batch, []
        return fmean(abs(advantage) for _, _, advantage in batch)


async def main() -> None:
    trainer = Trainer()
    async with AsyncFleet() as fleet:
        for step in range(STEPS):
            prompts = [f"Step {step}, question {place}:" for place in range(PROMPTS)]
            # Five samples of each prompt, of which the first four count: a straggler holds up no group. After a minute
            # the step goes on with the groups that are full; nothing of the others is left running.
            # Each sample has a seed of its own, counted from this one: without, the mock gateway's are all the same.
            sampling = fleet.group(
                prompts,
                n=SAMPLES,
                oversample=1,
                deadline_s=60,
                stragglers="drop",
                max_tokens=12,
                temperature=1.0,
                seed=step,
            )
            async with sampling as groups:
                async for group in groups:  # as they become full
                    if group.full:
                        trainer.add(group)
                    else:
                        print(f"step {step}: group {group.id} lacks {len(group.missing)} samples: {group.missing}")
            print(f"step {step}: {len(trainer.batch)} samples, {len(groups.dropped)} groups dropped", end=", ")
            print(f"mean advantage {trainer.step():.2f}")


if __name__ == "__main__":
    asyncio.run(main())
