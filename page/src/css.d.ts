declare module "*.css";

interface ImportMeta {
  env: { BASE_URL: string };
}
