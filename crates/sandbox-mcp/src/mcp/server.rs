//! The handler that the SDK calls: what this server is, and which function answers which request.

use std::{borrow::Cow, sync::Arc};

use rmcp::{
    ErrorData, RoleServer, ServerHandler,
    model::{
        CallToolRequestParams, CallToolResponse, CallToolResult, CancelTaskParams, CompleteRequestMethod,
        CompleteRequestParams, CompleteResult, CreateTaskResult, CustomRequest, CustomResult, ErrorCode, GetTaskParams,
        GetTaskResult, Implementation, JsonObject, ListPromptsRequestMethod, ListPromptsResult,
        ListResourceTemplatesResult, ListToolsResult, PaginatedRequestParams, ProtocolVersion,
        ReadResourceRequestParams, ReadResourceResponse, ServerCapabilities, ServerConfig, Tool, UpdateTaskParams,
    },
    service::{NotificationContext, RequestContext},
    task_manager::TaskManager,
};
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio::sync::Semaphore;

use super::{
    access,
    answers::Answer,
    arguments::{InSession, RunCommand},
    asking::{Caller, Pending},
    bound::Bound,
    error::ToolError,
    files, listing, names, paths, ports, resources, run, schema, sessions,
    task::{self, Handed},
    tools::{self, INSTRUCTIONS, TOOLS},
};
use crate::{
    app::App,
    sandboxes::{Session, access::Person},
};

/// The newest version with a handshake; later ones say theirs in every request.
const HANDSHAKE: ProtocolVersion = ProtocolVersion::V_2025_11_25;

/// Calls that are worked on at once; more wait their turn. Each holds a few descriptors.
const CALLS: usize = 256;
/// Removals have a line of their own: calls that wait for a frozen sandbox must not keep anybody from ending it.
const REMOVALS: usize = 16;

/// One client's view of this program.
pub struct Server {
    app: App,
    /// The one sandbox that there is for this client, if it has no other.
    bound: Option<Bound>,
    calls: Semaphore,
    removals: Semaphore,
    pending: Pending,
    /// Tasks of the protocol.
    tasks: TaskManager,
}

impl Server {
    /// For this program.
    pub fn new(app: App) -> Self {
        let (calls, removals) = (Semaphore::new(CALLS), Semaphore::new(REMOVALS));
        Self { app, bound: None, calls, removals, pending: Pending::default(), tasks: TaskManager::new() }
    }

    /// For one sandbox only.
    pub fn bound(self, bound: Bound) -> Self {
        Self { bound: Some(bound), ..self }
    }

    async fn call(
        &self,
        name: &str,
        arguments: JsonObject,
        context: &RequestContext<RoleServer>,
        caller: &Caller<'_>,
    ) -> Result<Answer, ToolError> {
        let (meant, arguments) = names::resolve(name, arguments);
        let tool = TOOLS.iter().find(|known| known.name == meant);
        let tool = tool.filter(|tool| self.bound.as_ref().is_none_or(|bound| bound.has(&tool.name)));
        let tool = tool.ok_or_else(|| ToolError::UnknownTool(schema::shortened(name)))?;
        let arguments = match &self.bound {
            Some(bound) => bound.admit(arguments)?,
            None => arguments,
        };
        let line = if tool.name == "cleanup_session" { &self.removals } else { &self.calls };
        let _turn = tokio::select! {
            turn = line.acquire() => turn,
            () = context.ct.cancelled() => return Err(ToolError::Cancelled),
        };
        if tool.name == "run_command" {
            // It sees to its own cancellation: there is something to kill.
            let (session, asked) = self.in_session::<RunCommand>(tool, arguments).await?;
            return run::run_command(session, asked, context, self.person(caller)).await;
        }
        tokio::select! {
            answer = self.dispatch(tool, arguments, context, caller) => answer,
            () = context.ct.cancelled() => Err(ToolError::Cancelled),
        }
    }

    async fn dispatch(
        &self,
        tool: &Tool,
        arguments: JsonObject,
        context: &RequestContext<RoleServer>,
        caller: &Caller<'_>,
    ) -> Result<Answer, ToolError> {
        match tool.name.as_ref() {
            "create_sandbox" => sessions::create_sandbox(&self.app, parse(tool, arguments)?, context).await,
            "get_output" => {
                let (session, asked) = self.in_session(tool, arguments).await?;
                run::get_output(session, asked, context).await
            }
            "write_files" => {
                let (session, asked) = self.in_session(tool, arguments).await?;
                files::write_files(session, asked).await
            }
            "get_files" => {
                let (session, asked) = self.in_session(tool, arguments).await?;
                files::get_files(session, asked).await
            }
            "list_files" => {
                let (session, asked) = self.in_session(tool, arguments).await?;
                listing::list_files(session, asked).await
            }
            "open_port" => {
                let (session, asked) = self.in_session(tool, arguments).await?;
                ports::open_port(session, asked).await
            }
            "get_sandbox_status" => {
                let asked = parse(tool, arguments)?;
                match &self.bound {
                    Some(bound) => sessions::status_of_one(&self.app, &bound.session).await,
                    None => sessions::get_sandbox_status(&self.app, asked, context).await,
                }
            }
            "cleanup_session" => sessions::cleanup_session(&self.app, parse(tool, arguments)?).await,
            "request_access" => {
                let (session, asked) = self.in_session(tool, arguments).await?;
                access::request_access(session, asked, self.person(caller)).await
            }
            "execute_task" => {
                let asked = parse(tool, arguments)?;
                match task::execute_task(&self.app, asked, context, caller, &self.tasks).await? {
                    Handed::Answer(answer) => Ok(answer),
                    Handed::Task(task) => Err(ToolError::Task(task)),
                }
            }
            other => Err(ToolError::UnknownTool(other.to_owned())),
        }
    }

    /// Who is asked for what the policy denies.
    fn person<'a>(&'a self, caller: &'a Caller<'_>) -> &'a dyn Person {
        match self.bound.as_ref().and_then(|bound| bound.person.as_deref()) {
            Some(person) => person,
            None => caller,
        }
    }

    /// The arguments, and the sandbox that they name.
    async fn in_session<T>(&self, tool: &Tool, arguments: JsonObject) -> Result<(Arc<Session>, T), ToolError>
    where
        T: DeserializeOwned + InSession,
    {
        let asked: T = parse(tool, arguments)?;
        let id = asked.session_id().parse()?;
        let caller = sessions::caller_of(&self.app, &id, asked.user_id())?;
        Ok((self.app.sandboxes.find_to_use(&caller, &id).await?, asked))
    }

    async fn read(&self, uri: &str) -> Result<ReadResourceResponse, ToolError> {
        let _turn = self.calls.acquire().await;
        let (id, _) = paths::parse_link(uri)?;
        if let Some(bound) = &self.bound {
            bound.check(&id)?;
        }
        let caller = sessions::caller_of(&self.app, &id, None)?;
        let session = self.app.sandboxes.find(&caller, &id).await?;
        Ok(resources::read(&session, uri).await?.into())
    }
}

/// Arguments as the tool takes them, or what is wrong with them.
fn parse<T: DeserializeOwned>(tool: &Tool, arguments: JsonObject) -> Result<T, ToolError> {
    let refuse = |what| ToolError::Arguments { tool: tool.name.to_string(), what };
    match schema::mismatch(&tool.input_schema, &arguments) {
        Some(what) => Err(refuse(what)),
        None => serde_json::from_value(Value::Object(arguments)).map_err(|error| refuse(error.to_string())),
    }
}

impl ServerHandler for Server {
    fn get_info(&self) -> ServerConfig {
        let capabilities = ServerCapabilities::builder().enable_tools().enable_resources().enable_tasks().build();
        let mut implementation = Implementation::new("sandbox-mcp", env!("CARGO_PKG_VERSION"));
        implementation.title = Some("Sandboxes".to_owned());
        ServerConfig::new(capabilities)
            .with_protocol_version(HANDSHAKE)
            .with_server_info(implementation)
            .with_instructions(self.bound.as_ref().map_or(INSTRUCTIONS, |bound| bound.instructions))
    }

    fn supported_protocol_versions(&self) -> Cow<'static, [ProtocolVersion]> {
        Cow::Borrowed(ProtocolVersion::KNOWN_VERSIONS)
    }

    /// From now on whoever sits at this client can be asked, also from inside a sandbox.
    async fn on_initialized(&self, context: NotificationContext<RoleServer>) {
        if self.bound.is_none() {
            self.app.client.set(context.peer);
        }
    }

    async fn list_tools(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        let all = tools::listed(&self.app.settings);
        Ok(ListToolsResult::with_all_items(match &self.bound {
            Some(bound) => bound.listed(all),
            None => all,
        }))
    }

    async fn call_tool(
        &self,
        mut request: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        let caller = Caller::of(&mut request, &context, &self.pending, self.app.settings.answer);
        let arguments = request.arguments.unwrap_or_default();
        let answered = self.call(&request.name, arguments, &context, &caller).await;
        if let Some(question) = caller.take_later() {
            return Ok(question.into());
        }
        match answered {
            Ok(answer) => Ok(CallToolResult::from(answer).into()),
            Err(ToolError::Task(task)) => Ok(CallToolResponse::Task(CreateTaskResult::new(*task))),
            Err(error @ ToolError::UnknownTool(_)) => Err(ErrorData::invalid_params(error.to_string(), None)),
            Err(error) => Ok(CallToolResult::from(error).into()),
        }
    }

    async fn list_resource_templates(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListResourceTemplatesResult, ErrorData> {
        Ok(ListResourceTemplatesResult::with_all_items(vec![resources::template()]))
    }

    async fn read_resource(
        &self,
        request: ReadResourceRequestParams,
        _: RequestContext<RoleServer>,
    ) -> Result<ReadResourceResponse, ErrorData> {
        self.read(&request.uri).await.map_err(|error| resources::refusal(&request.uri, &error))
    }

    async fn get_task(
        &self,
        request: GetTaskParams,
        _: RequestContext<RoleServer>,
    ) -> Result<GetTaskResult, ErrorData> {
        self.tasks.get_task(&request.task_id).map(GetTaskResult::new)
    }

    async fn update_task(&self, request: UpdateTaskParams, _: RequestContext<RoleServer>) -> Result<(), ErrorData> {
        self.tasks.update_task(&request.task_id, request.input_responses)
    }

    async fn cancel_task(&self, request: CancelTaskParams, _: RequestContext<RoleServer>) -> Result<(), ErrorData> {
        self.tasks.cancel_task(&request.task_id)
    }

    // There are no prompts and no completions, and nothing says there are.
    async fn list_prompts(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListPromptsResult, ErrorData> {
        Err(ErrorData::method_not_found::<ListPromptsRequestMethod>())
    }

    async fn complete(
        &self,
        _: CompleteRequestParams,
        _: RequestContext<RoleServer>,
    ) -> Result<CompleteResult, ErrorData> {
        Err(ErrorData::method_not_found::<CompleteRequestMethod>())
    }

    /// What the SDK does not know, and what it knows in another form than it came.
    async fn on_custom_request(
        &self,
        request: CustomRequest,
        _: RequestContext<RoleServer>,
    ) -> Result<CustomResult, ErrorData> {
        Err(match request.method.as_str() {
            "tools/call" | "resources/read" | "tools/list" | "initialize" => {
                super::transport::wrong_shape(&request.method)
            }
            other => {
                let method = schema::shortened(other);
                ErrorData::new(ErrorCode::METHOD_NOT_FOUND, format!("there is no method {method}"), None)
            }
        })
    }
}
