"""AgentOS of agno, for comparison: agentos.py DATABASE MODEL_URL PORT. DATABASE is a file or a postgresql:// URL."""

import sys

import uvicorn
from agno.agent import Agent
from agno.db.postgres import PostgresDb
from agno.db.sqlite import SqliteDb
from agno.models.openai import OpenAILike
from agno.os import AgentOS

database, model_url, port = sys.argv[1], sys.argv[2], int(sys.argv[3])
db = PostgresDb(db_url=database) if database.startswith("postgresql") else SqliteDb(db_file=database)


def agent(id, **options):
    model = OpenAILike(id="bench", base_url=model_url, api_key="none")
    return Agent(id=id, name=id, model=model, db=db, instructions="Be brief.", telemetry=False, **options)


# Only the second one keeps its events, all of them, for the replay: that costs the first one nothing.
agents = [agent("wire", add_history_to_context=True), agent("events", store_events=True, events_to_skip=[])]
app = AgentOS(agents=agents, telemetry=False).get_app()
uvicorn.run(app, host="127.0.0.1", port=port, log_level="error", access_log=False)
