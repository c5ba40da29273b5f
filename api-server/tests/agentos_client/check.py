"""Drives a running API server with AgentOS's own Python client, and says for each call whether it worked.

    python check.py http://127.0.0.1:7777 --agent helper [--key "$OS_SECURITY_KEY"] [--slow-agent NAME]
        [--pausing-agent NAME] [--pausing-message TEXT]

The client is the judge of compatibility: what it parses into its own types without complaint is compatible. Needs what
requirements.txt lists. Ends with 1 if anything failed.
"""

import argparse
import asyncio
import logging
import sys
import uuid

from agno.client import AgentOSClient
from agno.db.base import SessionType
from agno.run.base import RunStatus
from httpx import HTTPStatusError


class Complaints(logging.Handler):
    """The client logs what it can't parse and goes on; here that is a failure."""

    def __init__(self):
        super().__init__(logging.WARNING)
        self.texts = []

    def emit(self, record):
        self.texts.append(record.getMessage())


class Check:
    """State that one step leaves for the next."""

    def __init__(self, arguments):
        self.client = AgentOSClient(arguments.url, timeout=60)
        self.headers = {"Authorization": f"Bearer {arguments.key}"} if arguments.key else {}
        self.agent = arguments.agent
        self.slow_agent = arguments.slow_agent or arguments.agent
        self.pausing = (arguments.pausing_agent or arguments.agent, arguments.pausing_message)
        self.session = f"client/{uuid.uuid4()}"
        # A record that other checks have written to must not matter.
        self.user = f"ada-{uuid.uuid4()}"
        # The client puts ids into paths as they are: a slash must be escaped by its caller.
        self.session_path = self.session.replace("/", "%2F")
        self.made = str(uuid.uuid4())
        self.run = None

    async def config(self):
        config = await self.client.aget_config(headers=self.headers)
        assert self.agent in [agent.id for agent in config.agents], config.agents
        assert config.queue.durable and config.queue.queue_per_session

    async def list_agents(self):
        agents = await self.client.list_agents(headers=self.headers)
        assert self.agent in [agent.id for agent in agents], agents

    async def get_agent(self):
        agent = await self.client.aget_agent(self.agent, headers=self.headers)
        assert agent.id == self.agent and agent.model.provider, agent

    async def unknown_agent_is_404(self):
        await refused(404, self.client.aget_agent("no-such-agent", headers=self.headers))

    async def run_agent(self):
        run = await self.client.run_agent(
            self.agent, "hello", session_id=self.session, user_id=self.user, headers=self.headers,
            session_state={"colour": "blue"}, metadata={"ticket": 7},
        )
        assert run.status == RunStatus.completed, run.status
        assert run.content and run.session_id == self.session and run.user_id == self.user, run
        assert run.metrics.total_tokens >= 0 and run.metrics.duration is not None, run.metrics
        assert [message.role for message in run.messages][-1] == "assistant", run.messages
        assert run.session_state.get("colour") == "blue" and run.metadata["ticket"] == 7, run
        assert run.input.input_content == "hello", run.input
        self.run = run

    async def run_agent_stream(self):
        events = [
            event
            async for event in self.client.run_agent_stream(
                self.agent, "hello again", session_id=self.session, headers=self.headers
            )
        ]
        names = [event.event for event in events]
        assert names[0] == "RunStarted" and names[-1] == "RunCompleted", names
        assert "RunContent" in names, names
        text = "".join(str(event.content) for event in events if event.event == "RunContent" and event.content)
        assert text, names
        assert len({event.run_id for event in events}) == 1

    async def missing_message_is_422(self):
        await refused(422, self.client.run_agent(self.agent, "", headers=self.headers))

    async def create_session(self):
        made = await self.client.create_session(
            session_type=SessionType.AGENT, session_id=self.made, session_name="Made", session_state={"n": 1},
            metadata={"k": "v"}, user_id=self.user, agent_id=self.agent, headers=self.headers,
        )
        assert made.session_id == self.made and made.agent_session_id == self.made, made
        assert (made.session_name, made.agent_id, made.user_id) == ("Made", self.agent, self.user), made
        assert made.session_state == {"n": 1} and made.metadata == {"k": "v"}, made
        await refused(409, self.client.create_session(session_id=self.made, headers=self.headers))
        await refused(422, self.client.create_session(session_id="..", headers=self.headers))
        run = await self.client.run_agent(self.agent, "into it", session_id=self.made, headers=self.headers)
        assert run.session_state == {"n": 1}, run.session_state
        runs = await self.client.get_session_runs(self.made, headers=self.headers)
        assert [shown.run_id for shown in runs] == [run.run_id], runs

    async def update_session(self):
        changed = await self.client.update_session(
            self.made, session_name="Changed", session_state={"n": 2}, metadata={"k": "w"},
            summary={"summary": "They spoke."}, headers=self.headers,
        )
        assert (changed.session_name, changed.session_state) == ("Changed", {"n": 2}), changed
        assert changed.metadata == {"k": "w"} and changed.session_summary["summary"] == "They spoke.", changed
        again = await self.client.get_session(self.made, headers=self.headers)
        assert again.session_summary == changed.session_summary, again
        await refused(404, self.client.update_session("no-such-session", session_name="x", headers=self.headers))

    async def sessions_are_filtered_and_sorted(self):
        async def ids(**wanted):
            page = await self.client.get_sessions(headers=self.headers, **wanted)
            return [session.session_id for session in page.data]

        assert await ids(user_id=self.user, session_name="hang") == [self.made]
        assert self.made not in await ids(user_id="nobody") and await ids(session_type=SessionType.TEAM) == []
        both = [found for found in await ids(user_id=self.user, limit=100) if found in (self.made, self.session)]
        assert both == [self.made, self.session], both
        turned = await ids(user_id=self.user, limit=100, sort_by="created_at", sort_order="asc")
        assert [found for found in turned if found in both] == both[::-1], turned

    async def get_metrics(self):
        shown = await self.client.get_metrics(headers=self.headers)
        today = shown.metrics[-1]
        assert today.agent_runs_count >= 3 and today.agent_sessions_count >= 2 and today.users_count >= 1, today
        assert today.token_metrics["total_tokens"] >= 0 and shown.updated_at, today
        assert today.model_metrics == [] or today.model_metrics[0]["count"] >= 1, today.model_metrics
        day = today.date.date()
        only = await self.client.get_metrics(starting_date=day, ending_date=day, headers=self.headers)
        assert [metric.id for metric in only.metrics] == [today.id], only

    async def refresh_metrics(self):
        days = await self.client.refresh_metrics(headers=self.headers)
        assert days[-1].agent_runs_count >= 3, days
        begun = await self.client.refresh_metrics(background=True, headers=self.headers)
        assert begun.status in ("started", "already_running"), begun
        for _ in range(600):
            state = await self.client.get_metrics_refresh_status(headers=self.headers)
            if state.status == "completed":
                break
            await asyncio.sleep(0.1)
        assert state.status == "completed" and state.finished_at, state

    async def migrate_database(self):
        config = await self.client.aget_config(headers=self.headers)
        await self.client.migrate_database(config.databases[0], headers=self.headers)
        await refused(404, self.client.migrate_database("no-such-database", headers=self.headers))

    async def get_sessions(self):
        page = await self.client.get_sessions(session_type=SessionType.AGENT, component_id=self.agent, headers=self.headers)
        assert self.session in [session.session_id for session in page.data], page
        assert page.meta.total_count >= 1 and page.meta.page == 1, page.meta

    async def get_session(self):
        session = await self.client.get_session(self.session_path, headers=self.headers)
        assert session.session_id == self.session and session.agent_id == self.agent, session
        assert len(session.chat_history) >= 4, session.chat_history
        assert session.session_name == "hello", session.session_name

    async def get_session_runs(self):
        runs = await self.client.get_session_runs(self.session_path, headers=self.headers)
        assert [run.run_input for run in runs] == ["hello", "hello again"], runs
        assert runs[0].content == self.run.content, runs[0]
        none = await self.client.get_session_runs(self.session_path, headers=self.headers, status=["paused"])
        assert none == [], none

    async def get_session_run_previews(self):
        runs = await self.client.aget_session_run_previews(self.session_path, headers=self.headers)
        assert [run.status for run in runs] == ["COMPLETED", "COMPLETED"], runs

    async def get_session_run(self):
        run = await self.client.get_session_run(self.session_path, self.run.run_id, headers=self.headers)
        assert run.run_id == self.run.run_id and run.status == "COMPLETED", run
        await refused(404, self.client.get_session_run("elsewhere", self.run.run_id, headers=self.headers))

    async def continue_agent_run(self):
        run = await self.client.continue_agent_run(
            self.agent, self.run.run_id, [], session_id=self.session, headers=self.headers, input="and more"
        )
        assert run.status == RunStatus.completed and run.run_id != self.run.run_id, run
        assert run.forked_from_run_id == self.run.run_id, run.forked_from_run_id
        assert run.forked_from_message_index == len(self.run.messages), run.forked_from_message_index
        asked = [message.content for message in run.messages if message.role == "user"]
        assert asked == ["hello", "and more"], asked

    async def continue_agent_run_stream(self):
        names = [
            event.event
            async for event in self.client.continue_agent_run_stream(
                self.agent, self.run.run_id, [], session_id=self.session, headers=self.headers, input="and more"
            )
        ]
        assert names[0] == "RunContinued" and names[-1] == "RunCompleted", names

    async def regenerate(self):
        run = await self.client.continue_agent_run(
            self.agent, self.run.run_id, [], session_id=self.session, headers=self.headers, regenerate="true"
        )
        assert run.regenerated_from == self.run.run_id and run.status == RunStatus.completed, run
        runs = await self.client.get_session_runs(self.session_path, headers=self.headers, status=["regenerated"])
        assert [run.run_id for run in runs] == [self.run.run_id], runs

    async def unknown_run_is_404(self):
        call = self.client.continue_agent_run(
            self.agent, "no-such-run", [], session_id=self.session, headers=self.headers
        )
        await refused(404, call)

    async def rename_session(self):
        session = await self.client.rename_session(self.session_path, "Renamed", headers=self.headers)
        assert session.session_name == "Renamed", session

    async def continue_paused_run(self):
        agent, message = self.pausing
        run = await self.client.run_agent(agent, message, headers=self.headers)
        assert run.status == RunStatus.paused and run.is_paused, run.status
        assert len(run.tools_requiring_confirmation) == 1 and len(run.active_requirements) == 1, run.tools
        assert run.active_requirements[0].needs_confirmation, run.active_requirements
        session = {"session_id": run.session_id, "headers": self.headers}
        await refused(400, self.client.continue_agent_run(agent, run.run_id, [], **session))
        run.active_requirements[0].confirm()
        tools = [requirement.tool_execution for requirement in run.requirements]
        done = await self.client.continue_agent_run(agent, run.run_id, tools, **session)
        assert done.status == RunStatus.completed and done.run_id == run.run_id, done
        assert done.tools[0].confirmed is True and done.tools[0].result is not None, done.tools
        assert not done.tools_requiring_confirmation and not done.active_requirements, done.tools
        await refused(409, self.client.continue_agent_run(agent, run.run_id, tools, **session))

    async def continue_paused_run_stream(self):
        agent, message = self.pausing
        events = [event async for event in self.client.run_agent_stream(agent, message, headers=self.headers)]
        paused = events[-1]
        assert paused.event == "RunPaused" and paused.is_paused, [event.event for event in events]
        assert len(paused.active_requirements) == 1 and paused.tools[0].requires_confirmation, paused
        paused.active_requirements[0].reject("not today")
        names = [
            event.event
            async for event in self.client.continue_agent_run_stream(
                agent, paused.run_id, paused.tools and [paused.requirements[0].tool_execution],
                session_id=paused.session_id, headers=self.headers,
            )
        ]
        assert names[0] == "RunContinued" and names[-1] == "RunCompleted", names
        assert "ToolCallStarted" not in names, names

    async def cancel_paused_run(self):
        agent, message = self.pausing
        run = await self.client.run_agent(agent, message, headers=self.headers)
        await self.client.cancel_agent_run(agent, run.run_id, headers=self.headers)
        tools = run.tools
        call = self.client.continue_agent_run(
            agent, run.run_id, tools, session_id=run.session_id, headers=self.headers
        )
        await refused(409, call)

    async def cancel_agent_run(self):
        # A finished run and one that does not exist are no errors.
        await self.client.cancel_agent_run(self.agent, self.run.run_id, headers=self.headers)
        await self.client.cancel_agent_run(self.agent, "no-such-run", headers=self.headers)
        names = []
        async for event in self.client.run_agent_stream(self.slow_agent, "slow", headers=self.headers):
            if not names:
                await self.client.cancel_agent_run(self.slow_agent, event.run_id, headers=self.headers)
            names.append(event.event)
        assert names[-1] in ("RunCancelled", "RunCompleted"), names

    async def delete_session(self):
        await self.client.delete_session(self.session_path, headers=self.headers)
        await refused(404, self.client.get_session(self.session_path, headers=self.headers))

    async def delete_the_session_that_was_made(self):
        await self.client.delete_session(self.made, headers=self.headers)
        await refused(404, self.client.get_session(self.made, headers=self.headers))

    async def delete_sessions(self):
        run = await self.client.run_agent(self.agent, "bye", headers=self.headers)
        await self.client.delete_sessions([run.session_id], [SessionType.AGENT], headers=self.headers)
        await refused(404, self.client.get_session(run.session_id, headers=self.headers))


async def refused(status, call):
    try:
        await call
    except HTTPStatusError as error:
        assert error.response.status_code == status, error
        return
    raise AssertionError(f"{status} was expected")


STEPS = [name for name in vars(Check) if not name.startswith("_")]


async def main(arguments):
    complaints = Complaints()
    for name in ("agno", "agno-team", "agno-workflow"):
        logging.getLogger(name).addHandler(complaints)
    check, failed = Check(arguments), 0
    for name in STEPS:
        complaints.texts.clear()
        try:
            await getattr(check, name)()
            assert not complaints.texts, complaints.texts
            print(f"ok      {name}")
        except Exception as error:  # each step is judged on its own
            failed += 1
            print(f"FAILED  {name}: {type(error).__name__}: {error}")
    print(f"{len(STEPS) - failed} of {len(STEPS)} passed")
    return 1 if failed else 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("url")
    parser.add_argument("--agent", required=True)
    parser.add_argument("--slow-agent")
    parser.add_argument("--pausing-agent")
    parser.add_argument("--pausing-message", required=True)
    parser.add_argument("--key")
    sys.exit(asyncio.run(main(parser.parse_args())))
