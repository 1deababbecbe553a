//! The database of a world: copied from one with the schema, changed behind everyone's back, backed
//! up and restored.

use sqlx::{AssertSqlSafe, Connection, Executor, PgConnection};
use tokio::sync::OnceCell;

use super::World;

static TEMPLATE: OnceCell<String> = OnceCell::const_new();

fn with_database(url: &str, database: &str) -> String {
    match url.rsplit_once('/') {
        Some((server, _)) => format!("{server}/{database}"),
        None => panic!("{url} names no database"),
    }
}

fn name_of(url: &str) -> &str {
    match url.rsplit_once('/') {
        Some((_, name)) => name,
        None => panic!("{url} names no database"),
    }
}

async fn sql(url: &str, statement: &str) {
    let mut conn = match PgConnection::connect(url).await {
        Ok(conn) => conn,
        Err(error) => panic!("a test needs PostgreSQL: {error}"),
    };
    if let Err(error) = conn.execute(AssertSqlSafe(statement.to_owned())).await {
        panic!("{statement}: {error}");
    }
}

async fn migrate(url: &str) {
    if let Err(error) = store::migrate(url).await {
        panic!("the schema can't be made: {error}");
    }
}

/// A database with the schema, that new ones are copied from.
async fn template(admin_url: &str) -> String {
    TEMPLATE
        .get_or_init(|| async {
            let name = format!("hf_template_{}", contracts::ids::generate().simple());
            sql(admin_url, &format!("create database {name}")).await;
            migrate(&with_database(admin_url, &name)).await;
            name
        })
        .await
        .clone()
}

/// Makes a database with the schema and gives its URL. On the shared server it is a copy.
pub(super) async fn create(admin_url: &str, database: &str, shared: bool) -> String {
    let url = with_database(admin_url, database);
    if shared {
        let template = template(admin_url).await;
        let create = format!("create database {database} template {template}");
        sql(admin_url, &create).await;
    } else {
        sql(admin_url, &format!("create database {database}")).await;
        migrate(&url).await;
    }
    url
}

/// Removes a database with all that is in it, whoever is connected.
pub(super) async fn remove(admin_url: &str, database_url: &str) {
    let name = name_of(database_url);
    sql(admin_url, &format!("drop database {name} with (force)")).await;
}

/// Ends all sessions of a database.
fn disconnected(database: &str) -> String {
    format!("select pg_terminate_backend(pid) from pg_stat_activity where datname = '{database}'")
}

impl World {
    /// One number from the database.
    ///
    /// # Panics
    /// The statement fails.
    pub async fn count(&self, statement: &str) -> i64 {
        let row: Result<i64, sqlx::Error> = async {
            let mut conn = PgConnection::connect(&self.database_url).await?;
            sqlx::query_scalar(AssertSqlSafe(statement.to_owned()))
                .fetch_one(&mut conn)
                .await
        }
        .await;
        match row {
            Ok(count) => count,
            Err(error) => panic!("{statement}: {error}"),
        }
    }

    /// Changes the database behind everyone's back.
    pub async fn tamper(&self, statement: &str) {
        sql(&self.database_url, statement).await;
    }

    /// Copies the database; no service may run.
    pub async fn back_up(&self) {
        let (name, copy) = self.database_names();
        sql(&self.admin_url, &disconnected(&name)).await;
        let copied = format!("create database {copy} template {name}");
        sql(&self.admin_url, &copied).await;
    }

    /// Puts the copy in the database's place; no service may run.
    pub async fn restore(&self) {
        let (name, copy) = self.database_names();
        remove(&self.admin_url, &self.database_url).await;
        let renamed = format!("alter database {copy} rename to {name}");
        sql(&self.admin_url, &renamed).await;
    }

    fn database_names(&self) -> (String, String) {
        let name = name_of(&self.database_url);
        (name.to_owned(), format!("{name}_copy"))
    }
}
